//! Containers that start with a warning: it is in the runtime's log, and in the host's journal.

mod common;

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use common::{Way, each_way};
use vgpu_test_harness::{Bundle, Host, Outcome};

const UNLIMITED: &str = "has a GPU and starts without limits";
const DOUBT: &str = "starts, but probably not as meant: annotation nvidia.com/gpumem";

fn started(bundle: Bundle) -> Bundle {
    bundle.shell("echo started")
}

#[test]
fn gpus_without_limits_and_requests_that_are_hardly_meant_are_logged() {
    each_way(|host, way| {
        let gpu = || started(Bundle::new().device("/dev/nvidia0"));
        for (bundle, expected) in [
            (gpu(), Some(UNLIMITED)),
            (gpu().annotation("nvidia.com/gpumem", "1"), Some(DOUBT)),
            (gpu().annotation("nvidia.com/gpumem", "1024"), None),
            (started(Bundle::new()), None),
        ] {
            let outcome = way.run(host, bundle);
            assert_eq!(outcome.log.lines().count(), usize::from(expected.is_some()), "{way:?}: {outcome:#?}");
            assert!(outcome.log.contains(expected.unwrap_or_default()), "{way:?}, expected {expected:?}: {outcome:#?}");
            assert_eq!(outcome.ok(), "started\n", "{way:?}");
        }
    });
}

#[test]
fn limits_that_can_be_evaded_and_an_invalid_policy_are_logged() {
    each_way(|host, way| {
        let outcome = way.run(host, started(Bundle::new().capability("CAP_SYS_ADMIN").annotation("nvidia.com/gpumem", "1024")));
        assert!(outcome.log.contains("has CAP_SYS_ADMIN, which allows the evasion of its limits"), "{way:?}: {outcome:#?}");
        host.policy("unknown = 1");
        let outcome = way.run(host, started(Bundle::new()));
        assert!(outcome.log.contains("has no GPU and starts although the policy is invalid"), "{way:?}: {outcome:#?}");
        assert_eq!(outcome.ok(), "started\n", "{way:?}");
    });
}

/// A later container of the same id and bundle may be another one to its user.
#[test]
fn limits_that_are_kept_for_an_id_are_logged() {
    each_way(|host, way| {
        let bundle = || started(Bundle::new().annotation("nvidia.com/gpumem", "1024").with_id("vgpu-test-kept"));
        let folder = tempfile::tempdir().unwrap();
        let run = || way.run(host, bundle().placed_in(&folder.path().join("bundle")));
        let outcome = run();
        assert_eq!(outcome.log, "", "{way:?}");
        let persistent = host.state_dir().join("persistent");
        std::fs::create_dir(&persistent).unwrap();
        let gpus = |mib: u64| serde_json::json!([{ "gpu": "all", "memory": mib << 20 }]);
        let kept = serde_json::json!({ "bundle": folder.path().join("bundle"), "decided": gpus(1024), "limits": gpus(2048) });
        std::fs::write(persistent.join("vgpu-test-kept"), kept.to_string()).unwrap();
        let outcome = run();
        assert!(outcome.log.contains("gets the limits that \\\"vgpu set --persist\\\" keeps"), "{way:?}: {outcome:#?}");
        assert_eq!(outcome.ok(), "started\n", "{way:?}");
    });
}

/// Runs a bundle on a machine whose journald is `socket`, in a mount namespace of its own.
fn run_with_journal(host: &Host, way: Way, bundle: Bundle, socket: &std::path::Path) -> Outcome {
    let (bundle, inner) = match way {
        Way::Wrapper => (bundle, host.command()),
        _ => (host.with_hooks(bundle), host.bare_command()),
    };
    bundle.write();
    let script =
        r#"mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && mount --bind "$JOURNAL" /run/systemd/journal && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.env("JOURNAL", socket.parent().unwrap()).env("VGPU_CONFIG", host.policy_file());
    host.outcome(command.args(["run", "--bundle"]).arg(bundle.path()).arg("vgpu-test-journal"))
}

#[test]
fn warnings_are_in_the_host_s_journal() {
    each_way(|host, way| {
        if way == Way::Prestart {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        let outcome = run_with_journal(host, way, started(Bundle::new().device("/dev/nvidia0")), &path);
        assert_eq!(outcome.ok(), "started\n", "{way:?}");
        let mut bytes = [0; 1024];
        let length = journal.recv(&mut bytes).unwrap_or_else(|why| panic!("{way:?}: nothing is in the journal: {why}"));
        let program = if way == Way::Wrapper { "vgpu-runtime" } else { "vgpu-hook" };
        let expected = format!("PRIORITY=4\nSYSLOG_IDENTIFIER={program}\nMESSAGE=container vgpu-test-journal {UNLIMITED}\n");
        assert_eq!(std::str::from_utf8(&bytes[..length]), Ok(expected.as_str()), "{way:?}");
        assert!(journal.recv(&mut bytes).is_err(), "{way:?}: one message");
    });
}
