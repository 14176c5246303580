//! What a container does to the files that the host shares with it: leases and handles do not hold the host up or reach other files.

mod common;

use std::fs;

use common::{Monitor, stdout, vgpu};
use vgpu_e2e::{Kit, Machine, PROGRAMS, Running, Way, host};
use vgpu_test_harness::{Bundle, Host, Runtime, can_run};

const REGION: &str = "/usr/local/vgpu/region";
const LIMITS: &str = "/usr/local/vgpu/limits";

/// Runs a test with every installed runtime.
fn each_runtime(test: impl Fn(&Machine, &Host)) {
    let kit = Kit::find();
    for runtime in [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)) {
        eprintln!("{runtime:?}");
        test(&Machine::simulated(&kit, &[]), &host(&kit, runtime));
    }
}

fn limited(machine: &Machine) -> Bundle {
    machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30")
}

/// Starts a container whose only process takes a lease. Returns it and what the process said.
fn lease(machine: &Machine, host: &Host, build: impl Fn(Bundle) -> Bundle, words: [&str; 2]) -> (Running, String) {
    let command = [&format!("{PROGRAMS}/intrude"), "lease", words[0], words[1]];
    let mut container = Way::Wrapper.start(host, build(limited(machine)).args(&command));
    let said = container.line();
    (container, said)
}

/// Returns whether a process has a lease on a file.
fn is_leased(file: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = format!(":{} ", fs::metadata(file).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains(" LEASE ") && line.contains(&inode))
}

fn reports(machine: &Machine, host: &Host, id: &str) -> serde_json::Value {
    let report: serde_json::Value = serde_json::from_str(&stdout(vgpu(host, machine).args(["show", "--json", id]))).unwrap();
    report["containers"][0].clone()
}

#[test]
fn a_lease_on_the_region_holds_nobody_up() {
    each_runtime(|machine, host| {
        let (other, _) = lease(machine, host, |bundle| bundle.user(1000), ["write", REGION]);
        let (holder, said) = lease(machine, host, |bundle| bundle, ["write", REGION]);
        assert_eq!(said, "leased");
        let region = host.state_dir().join("containers").join(&holder.id).join("region");
        assert_eq!(reports(machine, host, &holder.id)["damaged"], "a process of the container holds a lease on the region");
        assert_eq!(reports(machine, host, &other.id)["damaged"], serde_json::Value::Null, "only the owner may take a lease");
        let monitor = Monitor::start(host, machine);
        common::wait_for("the damage is in the metrics", || {
            (monitor.value("vgpu_account_damaged", &holder.id) == Some(1.0)
                && monitor.value("vgpu_account_damaged", &other.id) == Some(0.0))
            .then_some(())
        });
        monitor.wait_for_log("the container's files are damaged");
        assert!(is_leased(&region), "the lease was still held");
    });
}

#[test]
fn a_lease_on_the_limits_is_an_error_of_set() {
    each_runtime(|machine, host| {
        let (holder, said) = lease(machine, host, |bundle| bundle, ["read", LIMITS]);
        assert_eq!(said, "leased");
        let limits = host.state_dir().join("containers").join(&holder.id).join("limits");
        assert_eq!(reports(machine, host, &holder.id)["damaged"], serde_json::Value::Null, "reading goes on");
        let refused = vgpu(host, machine).args(["set", &holder.id, "--gpucores", "20"]).output().unwrap();
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && error.contains(&format!("container {}: process ", holder.id)), "{error}");
        assert!(error.contains("holds a lease on ") && error.lines().count() == 1, "{error}");
        assert!(is_leased(&limits), "the lease was still held");
    });
}

/// The monitor's arbiter has the limits open for writing and the region for reading.
#[test]
fn no_lease_can_be_taken_beside_the_monitor_or_in_a_user_namespace() {
    each_runtime(|machine, host| {
        for (kind, file) in [("read", LIMITS), ("write", REGION)] {
            let (_, said) = lease(machine, host, |bundle| bundle.user_namespace(100_000), [kind, file]);
            assert!(said.starts_with("Permission denied"), "{kind} lease on {file} in a user namespace: {said}");
        }
        let monitor = Monitor::start(host, machine);
        for (kind, file) in [("read", LIMITS), ("write", REGION)] {
            let script = format!("read go; exec {PROGRAMS}/intrude lease {kind} {file}");
            let mut container = Way::Wrapper.start(host, limited(machine).shell(&script));
            let mapped = format!("/containers/{}/limits", container.id);
            // The directory of a dead container is renamed and used again; its deleted file may still be mapped.
            let is_mapped = || monitor.maps().lines().any(|line| line.ends_with(&mapped));
            common::wait_for("the arbiter has opened the files", || is_mapped().then_some(()));
            container.say("go");
            let said = container.line();
            assert!(said.starts_with("Resource temporarily unavailable"), "{kind} lease on {file} beside the monitor: {said}");
        }
    });
}

#[test]
fn handles_reach_no_other_file_through_the_regions_mount() {
    each_runtime(|machine, host| {
        for (file, expected) in [(REGION, "opened\n"), (LIMITS, "Stale file handle (os error 116)\n")] {
            for way in Way::ALL {
                let command = [&format!("{PROGRAMS}/intrude"), "handle", REGION, file];
                let bundle = limited(machine).capability("CAP_DAC_READ_SEARCH").args(&command);
                assert_eq!(way.run(host, bundle).ok(), expected, "{file}, {way:?}");
            }
        }
    });
}

#[test]
fn damaged_records_are_shown() {
    each_runtime(|machine, host| {
        let mut container = Way::Wrapper.start(host, limited(machine).shell("echo started; exec sleep 600"));
        assert_eq!(container.line(), "started");
        let record = host.containers()[0].join("container.json");
        fs::write(&record, "{").unwrap();
        for args in [&["show"][..], &["show", &container.id]] {
            let shown = stdout(vgpu(host, machine).args(args));
            assert!(shown.contains(&format!("{}: container.json cannot be read: ", container.id)), "{shown}");
        }
        let monitor = Monitor::start(host, machine);
        monitor.wait_for_log("container.json cannot be read");
        common::wait_for("the damage is in the metrics", || {
            (monitor.value("vgpu_account_damaged", &container.id) == Some(1.0)).then_some(())
        });
    });
}
