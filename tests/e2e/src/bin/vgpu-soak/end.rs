//! The end of the soak: accounts are compared, containers deleted, the monitor is stopped, and what is there is what was there before.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use vgpu_e2e::{Fill, MIB, Monitor, process};
use vgpu_test_harness::Host;

use crate::checkpoint::{Begin, Log, usages};
use crate::fleet::Fleet;
use crate::tenant::{Plan, Tenant};
use crate::{accounts, counts, parts, report};

/// Time within which all programs have ended that were asked to: the longest work for 40 s.
const QUIET: Duration = Duration::from_secs(60);
/// Time within which the monitor ends when it is asked to, and until it has seen that all containers are gone.
const PATIENCE: Duration = Duration::from_secs(15);
/// Creates until all that deleted containers have left is removed.
const SWEEPS: usize = 20;
/// Growth of a part's private memory in a long lifetime that is not a finding: what differs from sample to sample without a trend.
const NOISE: u64 = 256 << 10;
/// Memory below the limit that a process of 2 MiB allocations may not get: one that did not fit, and one for each process whose last
/// granule is not full.
const SLACK: u64 = 2 * MIB;

/// Ends the soak and prints the report. Returns the number of findings.
pub fn end(mut fleet: Fleet, monitor: Monitor, begin: &Begin, mut log: Log, about: &report::About) -> usize {
    eprintln!("soak: the end: waiting until all programs have stopped");
    calm(&mut fleet, &mut log);
    let compared = accounts::compare(&fleet.machine, &monitor, fleet.tenants.iter());
    eprintln!("soak: {} accounts compared, {} with processes", compared.compared, compared.with_processes);
    compared.differences.iter().for_each(|difference| log.find(format!("at the end an account differs: {difference}")));
    let filled = fill_all(&mut fleet, &monitor, &mut log);
    log.checkpoint(None, &fleet, &monitor);
    for tenant in std::mem::take(&mut fleet.tenants) {
        let id = tenant.id.clone();
        if let Err(why) = tenant.delete(&fleet.hosts) {
            log.find(format!("{id}: delete: {why}"));
        }
    }
    // What a container without vgpu-runtime leaves is removed by a later create, which looks at some of the folders.
    for _ in 0..SWEEPS {
        sweep(&mut fleet);
        if fleet.host().containers().is_empty() {
            break;
        }
    }
    std::thread::sleep(PATIENCE);
    let last = usages(&monitor);
    judge_parts(begin, &last, &mut log);
    if monitor.json(&["show", "--json"])["containers"].as_array().is_none_or(|list| !list.is_empty()) {
        log.find("vgpu show lists containers when all are deleted".to_owned());
    }
    log.false_reports(&monitor);
    stop(&monitor, &mut log);
    compare_host(&fleet, begin, &mut log);
    for failure in std::mem::take(&mut fleet.failures) {
        log.find(format!("an operation failed: {failure}"));
    }
    let outcome = report::Outcome { compared: [compared.compared, compared.with_processes], filled, last };
    print!("{}", report::report(about, &fleet, &log, begin, &outcome));
    log.findings.len()
}

/// Starts and deletes a container in each runtime through `vgpu-runtime`, which removes what containers without it have left.
pub fn sweep(fleet: &mut Fleet) {
    for host in 0..fleet.hosts.len() {
        let bundle = fleet.machine.bundle().annotation("nvidia.com/gpumem", "64").args(&["/bin/sleep", "60"]);
        let plan = Plan { bundle, host, wrapped: true, is_quiet: true, limit: None };
        let tenant = Tenant::start(&fleet.hosts, plan, format!("{}sweep-{host}", Fleet::prefix()));
        tenant.and_then(|tenant| tenant.delete(&fleet.hosts)).expect("a container can be started and deleted");
    }
}

/// Lets all containers come to rest.
fn calm(fleet: &mut Fleet, log: &mut Log) {
    let Fleet { hosts, tenants, .. } = fleet;
    let (killed, mut alive): (Vec<_>, Vec<_>) = std::mem::take(tenants).into_iter().partition(|tenant| tenant.killed);
    for tenant in killed {
        if let Err(why) = tenant.delete(hosts) {
            log.find(format!("delete of a killed container: {why}"));
        }
    }
    for tenant in &mut alive {
        if tenant.paused
            && let Err(why) = tenant.pause(hosts, false)
        {
            log.find(format!("{}: resume: {why}", tenant.id));
        }
        tenant.stop();
        tenant.is_quiet = true;
    }
    *tenants = alive;
    std::thread::sleep(QUIET);
}

/// Takes all memory that each limited container has left: a charge that nobody holds would be missing. Returns the number of containers.
fn fill_all(fleet: &mut Fleet, monitor: &Monitor, log: &mut Log) -> usize {
    let shown = monitor.json(&["show", "--json"]);
    let mut filled = 0;
    let Fleet { hosts, tenants, .. } = fleet;
    for tenant in tenants {
        let Some(share) = accounts::share(&shown, &tenant.id) else { continue };
        let Some(limit) = share["memory_limit"].as_u64() else { continue };
        let held = share["charged"].as_u64().unwrap_or(0);
        let processes = share["processes"].as_array().map_or(0, Vec::len) as u64;
        match fill(tenant, hosts) {
            Ok((taken, said)) => {
                filled += 1;
                let room = limit.saturating_sub(held);
                let expected = room.saturating_sub(SLACK * (2 + processes))..=room;
                if !expected.contains(&taken) {
                    log.find(format!(
                        "{}: a process could take {taken} bytes, expected {expected:?}: limit {limit}, {share}; {said}",
                        tenant.id
                    ));
                }
            }
            Err(why) => log.find(format!("{}: fill: {why}", tenant.id)),
        }
    }
    filled
}

/// Runs `fill` in a container. Returns what it could take with its context, and what it printed.
fn fill(tenant: &mut Tenant, hosts: &[Host]) -> Result<(u64, String), String> {
    // It exits with 1 if there is no room for a context.
    let script = "timeout 60 /programs/fill --chunk 2M; true";
    let output = tenant.call(hosts, &["exec"], &["/bin/sh", "-c", script])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with('{')).ok_or_else(|| format!("no answer: {output:?}"))?;
    let fill: Fill = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
    Ok((fill.obtained + fill.context.unwrap_or(0), line.to_owned()))
}

/// Judges what the monitor's processes use.
fn judge_parts(begin: &Begin, last: &std::collections::BTreeMap<String, process::Usage>, log: &mut Log) {
    for (role, before) in &begin.parts {
        match last.get(role) {
            None => log.find(format!("part {role} does not run at the end")),
            Some(after) if after.descriptors > before.descriptors => {
                log.find(format!("{role}: {} descriptors without containers, {} at the begin", after.descriptors, before.descriptors));
            }
            Some(_) => {}
        }
    }
    for role in last.keys().filter(|role| !begin.parts.contains_key(*role)) {
        log.find(format!("{role} runs when all containers are deleted"));
    }
    let growths = log.lives.growths();
    for role in std::iter::once(parts::SUPERVISOR).chain(parts::PARTS) {
        let mut grown: Vec<i64> = growths
            .iter()
            .filter(|growth| growth.role == role)
            .map(|growth| growth.private[1].cast_signed() - growth.private[0].cast_signed())
            .collect();
        grown.sort_unstable();
        if let Some(middle) = grown.get(grown.len() / 2).filter(|middle| **middle > NOISE.cast_signed()) {
            log.find(format!("{role}: private memory grew by {middle} bytes in the median of {} lifetimes", grown.len()));
        }
    }
    log.write(&json!({ "last": last.iter().map(|(role, usage)| (role.clone(), json!([usage.private, usage.descriptors]))).collect::<serde_json::Map<_, _>>() }));
}

/// Waits until processes have ended. Returns those that have not.
pub fn wait_for_end(pids: &[u32], patience: Duration) -> Vec<u32> {
    let begin = Instant::now();
    loop {
        let left: Vec<u32> = pids.iter().copied().filter(|pid| process::is_running(*pid)).collect();
        if left.is_empty() || begin.elapsed() > patience {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks the monitor to end.
fn stop(monitor: &Monitor, log: &mut Log) {
    let processes = process::tree(monitor.pid());
    let _ = Pid::from_raw(monitor.pid().cast_signed()).map(|pid| kill_process(pid, Signal::TERM));
    let left = wait_for_end(&processes, PATIENCE);
    if !left.is_empty() {
        log.find(format!("processes of the monitor that do not end at SIGTERM: {left:?}"));
    }
}

/// Compares the host with what it was before.
fn compare_host(fleet: &Fleet, begin: &Begin, log: &mut Log) {
    let folder = std::env::temp_dir();
    let files: BTreeSet<PathBuf> = counts::files(&folder).into_keys().collect();
    for file in files.difference(&begin.files) {
        log.find(format!("left: {}", file.display()));
    }
    let mounts = counts::mounts(&folder);
    if mounts.len() != begin.mounts {
        log.find(format!("{} mounts, {} at the begin: {mounts:?}", mounts.len(), begin.mounts));
    }
    for cgroup in counts::cgroups(&Fleet::prefix()) {
        log.find(format!("left: {}", cgroup.display()));
    }
    let processes = counts::in_cgroups_of(&Fleet::prefix());
    if !processes.is_empty() {
        log.find(format!("processes of containers: {processes:?}"));
    }
    let gpu = accounts::gpu(&fleet.machine);
    if gpu.used != begin.gpu || !gpu.processes.is_empty() {
        log.find(format!("the simulated GPU has {} bytes in use, {} at the begin, by {:?}", gpu.used, begin.gpu, gpu.processes));
    }
}
