//! Tenants that evade their limits, under a policy that kills. Each used to be overlooked.

mod common;

use common::{Monitor, ready};
use vgpu_e2e::{Machine, Running, Way};
use vgpu_test_harness::{Bundle, Host};

/// Policy of these tests.
const KILL: &str = "on_violation = \"kill\"\nviolation_grace_seconds = 1";
/// A dynamic loader that ignores /etc/ld.so.preload, at the path in `$loader`.
const LOADER: &str = "sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 >\"$loader\" && chmod 755 \"$loader\"";
/// A tenant that stays within its limits.
const HONEST: &str = "exec /programs/spin --ns 1000000 --seconds 600";

fn limited(machine: &Machine) -> Bundle {
    machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "20")
}

fn tenant(host: &Host, machine: &Machine, script: &str) -> Running {
    Way::Wrapper.start(host, limited(machine).args(&["/bin/sh", "-c", script]))
}

/// Runs the script beside a well-behaved tenant, and checks that only a process of the script is ended, for this kind of violation.
fn assert_ended(script: &str, kind: &str) {
    let Some((_kit, machine, host)) = ready() else { return };
    host.policy(KILL);
    let monitor = Monitor::start(&host, &machine);
    let honest = tenant(&host, &machine, HONEST);
    let evading = tenant(&host, &machine, script);
    let lines = monitor.wait_for_log("ended process");
    let ended = lines.last().unwrap();
    assert!(ended.contains(&evading.id) && ended.contains(kind), "{lines:#?}");
    assert_eq!(monitor.value("vgpu_violations_total", &honest.id), Some(0.0));
}

#[test]
fn a_program_with_a_name_that_is_not_utf_8_is_ended() {
    let fill = "exec \"$loader\" --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 2G --hold 600";
    assert_ended(&format!("loader=$(printf '/tmp/x\\377\\376'); {LOADER} && {fill}"), "over_limit");
}

/// The first byte of the region is its magic number.
#[test]
fn a_damaged_account_is_no_shelter() {
    let damage = "printf x | dd of=/usr/local/vgpu/region conv=notrunc 2>/dev/null";
    assert_ended(&format!("/programs/fill --chunk 64M --max 128M --hold 600 & sleep 2; {damage}; wait"), "bypass");
}

/// A helper process of the tenant resets the balance of the budget, which follows the head of the region and of the first GPU's account, as often
/// as it can. The program itself is unmodified.
#[test]
fn gpu_time_beyond_the_limit_is_ended() {
    let reset = "while :; do dd if=/tmp/one of=/usr/local/vgpu/region bs=8 seek=16 count=1 conv=notrunc 2>/dev/null; done";
    let script = format!("printf '\\1\\0\\0\\0\\0\\0\\0\\0' >/tmp/one; /programs/spin --ns 1000000 --seconds 600 & {reset} & {reset}");
    assert_ended(&script, "over_time");
}
