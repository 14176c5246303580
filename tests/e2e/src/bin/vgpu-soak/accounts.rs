//! vgpu's accounts, compared with what the simulated GPU itself knows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use vgpu_e2e::{MIB, Machine, Monitor, process};

use crate::tenant::Tenant;

/// Rounding of the driver, by which an account may differ for each process.
const GRANULE: u64 = 2 * MIB;
/// Time for which nothing was done to a container whose account is compared: what was done has an effect by then.
const SETTLED: Duration = Duration::from_secs(5);
/// Comparisons until a difference counts, and the time between them.
const ATTEMPTS: (u32, Duration) = (4, Duration::from_secs(2));

/// Memory of one process on the simulated GPU in bytes, by its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Its PID.
    pub pid: u32,
    /// Memory that NVML lists for it.
    pub used: u64,
    /// Memory that NVML lists for no process: managed memory.
    pub hidden: u64,
}

/// State of the simulated GPU.
pub struct Gpu {
    /// Its processes.
    pub processes: Vec<Truth>,
    /// Memory in use, in bytes.
    pub used: u64,
}

/// Returns the value of `name=` in a line.
fn field(line: &str, name: &str) -> u64 {
    let values = line.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.filter_map(|value| value.parse().ok()).next().unwrap_or(0)
}

/// Asks the simulated GPU.
pub fn gpu(machine: &Machine) -> Gpu {
    let text = machine.show();
    let (lines, processes): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("gpu="));
    let truth = |line: &&str| Truth { pid: field(line, "pid") as u32, used: field(line, "used"), hidden: field(line, "hidden") };
    Gpu { processes: processes.iter().map(truth).collect(), used: lines.iter().map(|line| field(line, "used")).sum() }
}

/// Returns the processes on the GPU, by PID namespace.
fn by_namespace(machine: &Machine) -> BTreeMap<String, Vec<Truth>> {
    let mut found: BTreeMap<String, Vec<Truth>> = BTreeMap::new();
    for truth in gpu(machine).processes {
        found.entry(process::namespace(truth.pid).unwrap_or_default()).or_default().push(truth);
    }
    found
}

/// Result of a comparison.
#[derive(Default)]
pub struct Comparison {
    /// Number of containers compared.
    pub compared: usize,
    /// Number of those with a process on the GPU.
    pub with_processes: usize,
    /// Their differences.
    pub differences: Vec<String>,
}

/// Compares the accounts of containers where nothing changes.
pub fn compare<'a>(machine: &Machine, monitor: &Monitor, tenants: impl Iterator<Item = &'a Tenant>) -> Comparison {
    let tenants: Vec<_> = tenants.filter(|tenant| tenant.is_quiet && !tenant.killed && tenant.touched.elapsed() > SETTLED).collect();
    let mut result = Comparison::default();
    for attempt in 1..=ATTEMPTS.0 {
        result = once(machine, monitor, &tenants);
        if result.differences.is_empty() || attempt == ATTEMPTS.0 {
            break;
        }
        std::thread::sleep(ATTEMPTS.1);
    }
    result
}

fn once(machine: &Machine, monitor: &Monitor, tenants: &[&Tenant]) -> Comparison {
    let before = by_namespace(machine);
    let shown = monitor.json(&["show", "--json"]);
    let after = by_namespace(machine);
    let mut result = Comparison::default();
    for tenant in tenants {
        let truth = before.get(&tenant.namespace).cloned().unwrap_or_default();
        if after.get(&tenant.namespace).cloned().unwrap_or_default() != truth {
            continue;
        }
        result.compared += 1;
        result.with_processes += usize::from(!truth.is_empty());
        if let Err(why) = check(tenant, &truth, &shown) {
            result.differences.push(format!("{}: {why}", tenant.id));
        }
    }
    result
}

/// Returns `vgpu show`'s share of a container.
pub fn share<'a>(shown: &'a Value, id: &str) -> Option<&'a Value> {
    let containers = shown["containers"].as_array()?;
    containers.iter().find(|container| container["id"] == id)?["gpus"].as_array()?.first()
}

/// Compares one container's account.
fn check(tenant: &Tenant, truth: &[Truth], shown: &Value) -> Result<(), String> {
    let (used, hidden) = truth.iter().fold((0, 0), |sum, one| (sum.0 + one.used, sum.1 + one.hidden));
    let share = share(shown, &tenant.id).ok_or("vgpu show does not list it")?;
    let number = |name: &str| share[name].as_u64().unwrap_or(0);
    let (held, charged, managed) = (number("held"), number("charged"), number("managed"));
    let said = || format!("the GPU has {used} bytes and {hidden} hidden in {} processes, vgpu {share}", truth.len());
    if held != used {
        return Err(format!("held {held}: {}", said()));
    }
    let room = GRANULE * truth.len() as u64;
    if charged.saturating_sub(managed).abs_diff(used) > room || managed.abs_diff(hidden) > room {
        return Err(format!("charged {charged}, of it managed {managed}: {}", said()));
    }
    if number("booked") < charged {
        return Err(format!("booked less than charged: {}", said()));
    }
    match tenant.most {
        Some(most) if used + hidden > most => Err(format!("more than its largest limit of {most}: {}", said())),
        _ => Ok(()),
    }
}
