//! Containers that were promised more memory than the simulated GPU has: those that are idle make room for those that work.

mod common;

use common::{Monitor, stdout, vgpu, wait_for};
use vgpu_e2e::{Kit, Machine, Running, Way, host};
use vgpu_test_harness::{Host, Runtime, can_run};

/// Memory limit of a container in MiB. The GPU has 512, of which each context takes 64.
const LIMIT: &str = "448";

/// Starts a container that checks each word of up to 288 MiB, which it fills and frees at random.
fn tenant(host: &Host, machine: &Machine, is_evictable: bool) -> Running {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", LIMIT);
    let bundle = if is_evictable { bundle.annotation("nvidia.com/gpumem-evictable", "true") } else { bundle };
    let program = ["/programs/moves", "--child", "--threads", "1", "--blocks", "9", "--largest", "32M"];
    let mut running = Way::Wrapper.start(host, bundle.args(&program));
    assert_eq!(running.line(), "ready");
    running
}

/// Returns the bytes that a container has moved to the host.
fn moved_out(host: &Host, machine: &Machine, running: &Running) -> u64 {
    let report: serde_json::Value = serde_json::from_str(&stdout(vgpu(host, machine).args(["show", "--json", &running.id]))).unwrap();
    report["containers"][0]["gpus"][0]["moved_out"].as_u64().unwrap_or(0)
}

/// Ends a container's work, and returns what it printed.
fn end(mut running: Running) -> String {
    running.say("end");
    let line = running.line();
    running.say("end");
    assert!(running.finish(), "{line}");
    line
}

/// A host whose policy lets memory be promised twice, and a small GPU.
fn overcommitted() -> Option<(Host, Machine)> {
    if !can_run(Runtime::Runc) {
        return None;
    }
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=512M", "reserved=0", "baseline=0", "context=64M", "context_hidden=0"]);
    let host = host(&kit, Runtime::Runc);
    host.policy("[overcommit]\nenabled = true");
    Some((host, machine))
}

#[test]
fn tenants_that_do_not_fit_together_all_get_on() {
    let Some((host, machine)) = overcommitted() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let tenants = [true, true, true].map(|is_evictable| tenant(&host, &machine, is_evictable));
    let mut have_moved = [false; 3];
    wait_for("each has moved out once", || {
        for (tenant, has_moved) in tenants.iter().zip(&mut have_moved) {
            *has_moved |= moved_out(&host, &machine, tenant) != 0;
        }
        println!("{have_moved:?}");
        (have_moved == [true; 3]).then_some(())
    });
    for tenant in tenants {
        println!("{}", end(tenant));
    }
}

#[test]
fn memory_is_not_promised_twice_unless_the_policy_says_so() {
    let Some((host, machine)) = overcommitted() else { return };
    host.policy("");
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", LIMIT).annotation("nvidia.com/gpumem-evictable", "true");
    let refused = Way::Wrapper.run(&host, bundle.args(&["true"]));
    let output = refused.log + &refused.stderr;
    assert!(
        !refused.status.success() && output.contains("nvidia.com/gpumem-evictable") && output.contains("overcommit.enabled"),
        "{output}"
    );
}
