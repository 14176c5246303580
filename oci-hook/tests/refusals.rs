//! Containers that cannot be limited do not start. One line in the caller's log has the reason, and nothing remains of them.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{each_way, host, runtimes};
use vgpu_region::paths;
use vgpu_test_harness::{Bundle, Host, Outcome};

fn limited() -> Bundle {
    Bundle::new().annotation("nvidia.com/gpumem", "1024").shell("echo started")
}

/// Runs a bundle that must be refused, and checks that nothing remains. Returns the line in the log.
fn refused(host: &Host, bundle: &Bundle, description: &str) -> String {
    let outcome = host.run(bundle);
    assert!(!outcome.stdout.contains("started"), "{description}: {outcome:#?}");
    let line = outcome.refusal();
    let written = serde_json::from_slice::<serde_json::Value>(&fs::read(bundle.config()).unwrap()).unwrap();
    assert_eq!(written, bundle.spec, "{description}: config.json is unchanged");
    assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 2, "{description}: nothing new in the bundle");
    assert_eq!(host.containers(), [] as [std::path::PathBuf; 0], "{description}");
    assert!(!bundle.rootfs().join("usr/local/vgpu").exists(), "{description}: nothing new in the image");
    line
}

#[test]
fn invalid_requests_are_refused() {
    let unknown = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    let cases = [
        ("nvidia.com/gpumem", "10Q", "expected a positive integer (MiB)"),
        ("nvidia.com/gpumem", "-1", "expected a positive integer"),
        ("nvidia.com/gpumem", "0", "expected a positive integer"),
        ("nvidia.com/gpumem", "1024\nlevel=info", r"1024\nlevel=info"),
        ("nvidia.com/gpumem-percentage", "101", "from 1 to 100"),
        ("nvidia.com/gpucores", "101", "from 1 to 100"),
        ("nvidia.com/use-gpuuuid", unknown, unknown),
        ("nvidia.com/gpu-mem", "1024", "did you mean nvidia.com/gpumem?"),
        ("nvidia.com/use-gpuuuid", "GPU-nonsense", "a comma-separated list of UUIDs"),
    ];
    for runtime in runtimes() {
        let host = host(runtime);
        for (key, value, expected) in cases {
            let line = refused(&host, &limited().annotation(key, value), value);
            // The text format escapes the message once more.
            assert!(line.contains(key) && line.replace(r"\\", r"\").contains(expected), "{line}");
            assert!(line.contains(" level=error msg="), "{line}");
        }
        let only = Bundle::new().annotation("nvidia.com/gpumems", "1024").shell("echo started");
        assert_eq!(host.run(&only).ok(), "started\n", "a container without a GPU");
        let line = refused(&host, &only.env("NVIDIA_VISIBLE_DEVICES", "all"), "a misspelt key alone");
        assert!(line.contains("did you mean nvidia.com/gpumem?"), "{line}");
    }
}

#[test]
fn errors_have_the_requested_log_format() {
    for runtime in runtimes() {
        let line = refused(&host(runtime).log_json(), &limited().annotation("nvidia.com/gpumem", "1\n0"), "json");
        let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(entry["level"], "error");
        assert!(entry["msg"].as_str().unwrap().contains(r#"annotation nvidia.com/gpumem: "1\n0": expected"#), "{line}");
    }
}

/// CRI-O's monitor starts the runtime without `--log`, and reads its stderr.
#[test]
fn errors_of_hooks_reach_the_stderr_of_a_runtime_without_a_log() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = host.with_hooks(limited().annotation("nvidia.com/gpumem", "10Q"));
        bundle.write();
        let mut command = runtime.command(&runtime.path().unwrap());
        command.arg("--root").arg(host.state_dir().with_file_name("root"));
        let outcome = host.outcome(command.args(["run", "--bundle"]).arg(bundle.path()).arg("vgpu-test-without-a-log"));
        assert!(!outcome.status.success() && !outcome.stdout.contains("started"), "{outcome:#?}");
        assert_eq!(outcome.stderr.matches("expected a positive integer (MiB)").count(), 1, "{outcome:#?}");
    }
}

#[test]
fn incomplete_hosts_refuse_limited_containers() {
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
        let world_writable = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(host.library(), world_writable).unwrap();
        assert!(refused(&host, &limited(), "a world-writable library").contains("a regular file that belongs to root"));
    }
}

#[test]
fn an_invalid_policy_stops_only_containers_that_may_have_a_gpu() {
    each_way(|host, way| {
        host.policy("unknown = 1");
        let outcome = way.run(host, Bundle::new().shell("echo started"));
        assert_eq!(outcome.stdout, "started\n", "{way:?}: {outcome:#?}");
        let devices = Bundle::new().shell("echo started").device("/dev/null");
        for (bundle, description) in [
            (limited(), "a request"),
            (devices, "a device"),
            (Bundle::new().env("NVIDIA_VISIBLE_DEVICES", "all").shell("echo started"), "a GPU"),
        ] {
            let outcome = way.run(host, bundle);
            assert!(!outcome.stdout.contains("started"), "{way:?}, {description}: {outcome:#?}");
            assert!(format!("{outcome:?}").contains("unknown field `unknown`"), "{way:?}, {description}: {outcome:#?}");
        }
    });
}

#[test]
fn failed_creates_are_swept_by_the_next() {
    for runtime in runtimes() {
        let host = host(runtime);
        let broken = limited().args(&["/no/such/program"]);
        let outcome = host.run(&broken);
        assert!(!outcome.status.success());
        let _ = host.run(&limited()).ok();
        assert_eq!(host.containers().len(), 1, "{runtime:?}: only that of the next remains");
    }
}

#[test]
fn a_library_that_programs_cannot_load_is_refused() {
    for runtime in runtimes() {
        let host = host(runtime);
        let set_mode = |mode| fs::set_permissions(host.library(), PermissionsExt::from_mode(mode)).unwrap();
        set_mode(0o600);
        assert!(refused(&host, &limited(), "mode 0600").contains("expected a library that every user can read"));
        set_mode(0o644);
        fs::write(host.library(), "a text\n").unwrap();
        assert!(refused(&host, &limited(), "a text").contains("expected a 64-bit ELF library"));
        fs::write(host.library(), "").unwrap();
        assert!(refused(&host, &limited(), "empty").contains("expected a 64-bit ELF library"));
        fs::write(host.library(), &vgpu_test_harness::stand_in()[..100]).unwrap();
        assert!(refused(&host, &limited(), "cut off").contains("expected a complete library"));
    }
}

/// The file's mount in the container does not have the flag.
#[test]
fn a_library_on_a_file_system_mounted_noexec_can_be_loaded() {
    let script = r#"mount --bind "$LIBRARY" "$LIBRARY" && mount -o remount,bind,noexec "$LIBRARY" && exec "$@""#;
    for runtime in runtimes() {
        let host = host(runtime);
        let inner = host.command();
        let bundle = limited().shell("grep libvgpu.so /proc/self/mountinfo");
        bundle.write();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
        command.env("LIBRARY", host.library()).env("VGPU_CONFIG", host.policy_file());
        let seen = host.outcome(command.args(["run", "--bundle"]).arg(bundle.path()).arg("vgpu-test-noexec")).ok();
        assert!(seen.contains("nosuid") && !seen.contains("noexec"), "{seen}");
    }
}

type Build = fn(Bundle) -> Bundle;

/// A directory on the host to which hostile images link.
const OUTSIDE: &str = "/tmp/vgpu-test-outside";

/// Images with paths that lead elsewhere.
const HOSTILE: [(&str, Build); 9] = [
    ("/etc is an absolute link", |bundle| bundle.link("/etc", OUTSIDE)),
    ("/etc is a link out of the image", |bundle| bundle.link("/etc", "../../../../../../../../tmp/vgpu-test-outside")),
    ("/etc is a link to a directory of the image", |bundle| bundle.link("/etc", "tmp")),
    ("/etc/ld.so.preload is an absolute link", |bundle| bundle.link("/etc/ld.so.preload", "/tmp/vgpu-test-outside/x")),
    ("/etc/ld.so.preload is a link out of the image", |bundle| {
        bundle.link("/etc/ld.so.preload", "../../../../../../../tmp/vgpu-test-outside/x")
    }),
    ("/etc/ld.so.preload is a directory", |bundle| bundle.file("/etc/ld.so.preload/x", b"")),
    ("/usr is a link", |bundle| bundle.link("/usr", OUTSIDE)),
    ("/usr/local is a link", |bundle| bundle.link("/usr/local", OUTSIDE)),
    ("/usr/local/vgpu is a link", |bundle| bundle.link("/usr/local/vgpu", OUTSIDE)),
];

#[test]
fn images_with_symbolic_links_are_refused() {
    fs::create_dir_all(OUTSIDE).unwrap();
    each_way(|host, way| {
        for (description, build) in HOSTILE {
            let outcome: Outcome = way.run(host, build(limited()));
            assert!(!outcome.status.success() && !outcome.stdout.contains("started"), "{description}: {outcome:#?}");
            let said = format!("{}{}", outcome.log, outcome.stderr);
            assert!(said.contains("in the container's image is"), "{description}, {way:?}: {outcome:#?}");
            assert_eq!(host.containers().len(), 0, "{description}, {way:?}");
            assert_eq!(fs::read_dir(OUTSIDE).unwrap().count(), 0, "{description}, {way:?}: created something on the host");
        }
    });
    fs::remove_dir(OUTSIDE).unwrap();
}

#[test]
fn hostile_ids_are_refused() {
    for runtime in runtimes() {
        let host = host(runtime);
        let bundle = limited();
        bundle.write();
        for id in ["../../x", "a/b", "..", "a b", "a\nlevel=error"] {
            let outcome = host.outcome(host.command().arg("run").arg("--bundle").arg(bundle.path()).arg(id));
            let line = outcome.refusal();
            assert!(line.contains("container id: "), "{line}");
        }
        assert!(!host.state_dir().exists());
    }
}

#[test]
fn containers_that_could_evade_limits_are_refused_if_the_policy_says_so() {
    for runtime in runtimes() {
        let host = host(runtime);
        let with = |capability| limited().capability(capability);
        // Another container with the same volume can remove the mount points.
        let volume = tempfile::tempdir().unwrap();
        let covered = || limited().bind(volume.path(), "/etc", &["rw"]);
        let (admin, by_handle) = ("CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH");
        for (bundle, reason) in [(with(admin), admin), (with(by_handle), by_handle), (covered(), "a volume over /etc")] {
            let admitted = host.run(&bundle);
            assert!(admitted.log.contains("level=warning") && admitted.log.contains(reason), "{admitted:#?}");
            assert!(admitted.ok().contains("started"));
        }
        let host = common::host(runtime);
        host.policy("privileged = \"refuse\"");
        for capability in [admin, by_handle] {
            assert!(refused(&host, &with(capability), capability).contains(capability));
        }
        assert!(refused(&host, &covered(), "a volume").contains("a volume over /etc"));
    }
}

#[test]
fn images_without_glibc_are_refused_if_the_policy_says_so() {
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

/// An engine in a chroot: in the container's mount namespace the bundle is at another path, and `/` is the host's root.
#[test]
fn hooks_in_a_chroot_refuse_and_leave_the_host_s_root_alone() {
    let script = r#"mount --rbind / "$ROOT" && mount --bind "$BUNDLE" "$ROOT/mnt" && exec chroot "$ROOT" "$@""#;
    for runtime in runtimes() {
        let (host, root) = (host(runtime), tempfile::tempdir().unwrap());
        let bundle = host.with_hooks(limited());
        bundle.write();
        let bare = host.bare_command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(bare.get_program()).args(bare.get_args());
        command.args(["run", "--bundle", "/mnt", "chrooted"]).env("ROOT", root.path()).env("BUNDLE", bundle.path());
        let outcome = host.outcome(&mut command);
        assert!(!outcome.stdout.contains("started"), "{outcome:#?}");
        assert!(format!("{outcome:?}").contains("root.path"), "{outcome:#?}");
        assert!(!Path::new(paths::LIBRARY).exists(), "a mount point in the host's root");
        assert_eq!(host.containers(), [] as [std::path::PathBuf; 0]);
    }
}
