//! Containers that cannot be limited: they do not start, one line says why where the caller looks, and nothing is left behind.

mod common;

use std::fs;

use common::{each_way, host, runtimes};
use vgpu_test_harness::{Bundle, Host, Outcome};

fn limited() -> Bundle {
    Bundle::new().annotation("nvidia.com/gpumem", "1024").shell("echo started")
}

/// Runs a bundle that must be refused, and checks that nothing is left of the attempt.
fn refused(host: &Host, bundle: &Bundle, description: &str) -> String {
    let outcome = host.run(bundle);
    assert!(!outcome.stdout.contains("started"), "{description}: {outcome:#?}");
    let line = outcome.refusal();
    let written = serde_json::from_slice::<serde_json::Value>(&fs::read(bundle.config()).unwrap()).unwrap();
    assert_eq!(written, bundle.spec, "{description}: config.json is as it was");
    assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 2, "{description}: nothing new in the bundle");
    assert_eq!(host.containers(), [] as [std::path::PathBuf; 0], "{description}");
    assert!(!bundle.rootfs().join("usr/local/vgpu").exists(), "{description}: nothing new in the image");
    line
}

#[test]
fn bad_requests() {
    let unknown = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    let cases = [
        ("nvidia.com/gpumem", "10Q", "accepted is a whole number above 0, of MiB"),
        ("nvidia.com/gpumem", "-1", "accepted is a whole number"),
        ("nvidia.com/gpumem", "0", "accepted is a whole number"),
        ("nvidia.com/gpumem", "1024\nlevel=info", r"1024\nlevel=info"),
        ("nvidia.com/gpumem-percentage", "101", "from 1 to 100"),
        ("nvidia.com/gpucores", "101", "from 1 to 100"),
        ("nvidia.com/use-gpuuuid", unknown, unknown),
        ("nvidia.com/use-gpuuuid", "GPU-nonsense", "a comma list of UUIDs"),
    ];
    for runtime in runtimes() {
        let host = host(runtime);
        for (key, value, expected) in cases {
            let line = refused(&host, &limited().annotation(key, value), value);
            // The text format has its own quoting on top.
            assert!(line.contains(key) && line.replace(r"\\", r"\").contains(expected), "{line}");
            assert!(line.contains(" level=error msg="), "{line}");
        }
    }
}

#[test]
fn in_the_format_that_was_asked_for() {
    for runtime in runtimes() {
        let line = refused(&host(runtime).log_json(), &limited().annotation("nvidia.com/gpumem", "1\n0"), "json");
        let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(entry["level"], "error");
        assert!(entry["msg"].as_str().unwrap().contains(r#"annotation nvidia.com/gpumem="1\n0": accepted is"#), "{line}");
    }
}

#[test]
fn a_host_that_is_not_ready() {
    for runtime in runtimes() {
        let host = host(runtime);
        host.policy("unknown = 1");
        assert!(refused(&host, &limited(), "policy").contains("unknown field `unknown`"));
        fs::remove_file(host.policy_file()).unwrap();
        assert!(refused(&host, &limited(), "no policy").contains("cannot read"));
        host.policy("runtimes_ = []");
        fs::write(host.policy_file(), format!("state_dir = {:?}\nruntimes = [\"no-such-runtime\"]", host.state_dir())).unwrap();
        assert!(refused(&host, &limited(), "no runtime").contains("no low-level runtime"));
        host.policy("hook = \"/no/such/hook\"");
        assert!(refused(&host, &limited(), "no hook").contains("/no/such/hook"));
        host.policy("");
        fs::remove_file(host.library()).unwrap();
        assert!(refused(&host, &limited(), "no library").contains("cannot find the library"));
        fs::write(host.library(), "x").unwrap();
        let everybodys = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(host.library(), everybodys).unwrap();
        assert!(refused(&host, &limited(), "a library that anybody may write").contains("a regular file of root's"));
    }
}

#[test]
fn a_low_level_runtime_that_refuses_leaves_nothing_for_long() {
    for runtime in runtimes() {
        let host = host(runtime);
        let broken = limited().args(&["/no/such/program"]);
        let outcome = host.run(&broken);
        assert!(!outcome.status.success());
        let _ = host.run(&limited()).ok();
        assert_eq!(host.containers().len(), 1, "{runtime:?}: swept by the next, whose own is left");
    }
}

type Build = fn(Bundle) -> Bundle;

/// A folder on the host, to which hostile images lead.
const OUTSIDE: &str = "/tmp/vgpu-test-outside";

/// Images that lead elsewhere.
const HOSTILE: [(&str, Build); 9] = [
    ("/etc is an absolute link", |bundle| bundle.link("/etc", OUTSIDE)),
    ("/etc is a link out of the image", |bundle| bundle.link("/etc", "../../../../../../../../tmp/vgpu-test-outside")),
    ("/etc is a link to a folder of the image", |bundle| bundle.link("/etc", "tmp")),
    ("/etc/ld.so.preload is an absolute link", |bundle| bundle.link("/etc/ld.so.preload", "/tmp/vgpu-test-outside/x")),
    ("/etc/ld.so.preload is a link out of the image", |bundle| {
        bundle.link("/etc/ld.so.preload", "../../../../../../../tmp/vgpu-test-outside/x")
    }),
    ("/etc/ld.so.preload is a folder", |bundle| bundle.file("/etc/ld.so.preload/x", b"")),
    ("/usr is a link", |bundle| bundle.link("/usr", OUTSIDE)),
    ("/usr/local is a link", |bundle| bundle.link("/usr/local", OUTSIDE)),
    ("/usr/local/vgpu is a link", |bundle| bundle.link("/usr/local/vgpu", OUTSIDE)),
];

#[test]
fn images_that_lead_elsewhere() {
    fs::create_dir_all(OUTSIDE).unwrap();
    each_way(|host, way| {
        for (description, build) in HOSTILE {
            let outcome: Outcome = way.run(host, build(limited()));
            assert!(!outcome.status.success() && !outcome.stdout.contains("started"), "{description}: {outcome:#?}");
            let said = format!("{}{}", outcome.log, outcome.stderr);
            assert!(said.contains("in the container's image is"), "{description}, {way:?}: {outcome:#?}");
            assert_eq!(host.containers().len(), 0, "{description}, {way:?}");
            assert_eq!(fs::read_dir(OUTSIDE).unwrap().count(), 0, "{description}, {way:?}: made something on the host");
        }
    });
    fs::remove_dir(OUTSIDE).unwrap();
}

#[test]
fn hostile_ids() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited();
        bundle.write();
        for id in ["../../x", "a/b", "..", "a b", "a\nlevel=error"] {
            let outcome = host.outcome(host.command().arg("run").arg("--bundle").arg(bundle.path()).arg(id));
            let line = outcome.refusal();
            assert!(line.contains("container id="), "{line}");
        }
        assert!(!host.state_dir().exists());
    }
}

#[test]
fn who_could_undo_the_mounts_is_refused_where_policy_says_so() {
    for runtime in runtimes() {
        let host = host(runtime);
        let privileged = || limited().capability("CAP_SYS_ADMIN");
        // Another container with the same volume can remove what is mounted on.
        let volume = tempfile::tempdir().unwrap();
        let covered = || limited().bind(volume.path(), "/etc", &["rw"]);
        for (bundle, by) in [(privileged(), "CAP_SYS_ADMIN"), (covered(), "a volume over /etc")] {
            let admitted = host.run(&bundle);
            assert!(admitted.log.contains("level=warning") && admitted.log.contains(by), "{admitted:#?}");
            assert!(admitted.ok().contains("started"));
        }
        let host = common::host(runtime);
        host.policy("privileged = \"refuse\"");
        assert!(refused(&host, &privileged(), "privileged").contains("CAP_SYS_ADMIN"));
        assert!(refused(&host, &covered(), "a volume").contains("a volume over /etc"));
    }
}

#[test]
fn images_without_glibc_are_refused_where_policy_says_so() {
    for runtime in runtimes() {
        let host = host(runtime);
        host.policy("without_glibc = \"refuse\"");
        assert!(refused(&host, &limited(), "busybox only").contains("glibc"));
        let with = limited()
            .file("/lib/x86_64-linux-gnu/ld.so", b"")
            .link("/lib64", "lib")
            .link("/lib/ld-linux-x86-64.so.2", "x86_64-linux-gnu/ld.so");
        assert!(host.run(&with).ok().contains("started"));
    }
}
