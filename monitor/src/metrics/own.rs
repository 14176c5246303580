//! Metrics of vgpu's own.

use prometheus::{Opts, Result};

use super::sheet::{Sheet, names, shares};
use super::tally::Tally;
use crate::snapshot::{ContainerState, Share, Snapshot};
use crate::violations::Kind;

const SHARE: [&str; 5] = ["namespace", "pod", "container", "container_id", "device_uuid"];
const CONTAINER: [&str; 4] = ["namespace", "pod", "container", "container_id"];

type Figure = fn(&Share) -> Option<f64>;

/// Gauges of a share: name, help, value. A value of `None` is left out.
const GAUGES: [(&str, &str, Figure); 10] = [
    ("vgpu_memory_limit_bytes", "Device memory limit of the container", |share| share.memory_limit.map(|bytes| bytes as f64)),
    ("vgpu_memory_charged_bytes", "Device memory charged to the container's living processes by its own account", |share| {
        Some(share.charged as f64)
    }),
    ("vgpu_memory_overhead_bytes", "Part of the charged memory for contexts, modules and stacks", |share| Some(share.overhead as f64)),
    ("vgpu_memory_managed_bytes", "Part of the charged memory for managed memory, which NVML does not list by process", |share| {
        Some(share.managed as f64)
    }),
    ("vgpu_memory_held_bytes", "Device memory that the container's processes hold according to NVML", |share| {
        share.held.map(|bytes| bytes as f64)
    }),
    ("vgpu_memory_spilled_bytes", "Memory of the container spilled to the host", |share| Some(share.spilled as f64)),
    ("vgpu_compute_limit_ratio", "Compute limit of the container as a fraction of the GPU's time (0-1)", |share| {
        share.cores.map(|percent| f64::from(percent) / 100.0)
    }),
    ("vgpu_gpu_observed_ratio", "Recent part of the GPU's time that the container's processes used according to NVML (0-1)", |share| {
        share.observed.map(|percent| percent / 100.0)
    }),
    ("vgpu_processes", "Processes of the container on the GPU", |share| Some(share.processes.len() as f64)),
    ("vgpu_first_refusal_timestamp_seconds", "Time of the container's first refused memory request", |share| share.first_refusal),
];

/// Counters of a share.
const COUNTERS: [(&str, &str, Figure); 4] = [
    ("vgpu_gpu_seconds_total", "GPU time charged to the container", |share| Some(share.used_ns as f64 / 1e9)),
    ("vgpu_gpu_observed_seconds_total", "GPU time that the container's processes used according to NVML", |share| {
        share.observed_ns.map(|ns| ns as f64 / 1e9)
    }),
    ("vgpu_throttled_seconds_total", "Time for which the container's launches were delayed, summed over threads", |share| {
        Some(share.throttled_ns as f64 / 1e9)
    }),
    ("vgpu_turn_changes_total", "Number of times that the arbiter opened or closed the container's turn", |share| {
        Some(share.turn_changes as f64)
    }),
];

fn labels<'a>(container: &'a ContainerState, share: &'a Share) -> [&'a str; 5] {
    let [namespace, pod, name] = names(container);
    [namespace, pod, name, &container.id, &share.uuid]
}

pub(super) fn write(sheet: &mut Sheet, snapshot: &Snapshot, tally: &impl Fn(&str) -> Tally) -> Result<()> {
    for (name, help, figure) in GAUGES {
        let vec = sheet.gauge(Opts::new(name, help), &SHARE)?;
        for (container, _, share) in shares(snapshot) {
            if let Some(figure) = figure(share) {
                vec.with_label_values(&labels(container, share)).set(figure);
            }
        }
    }
    for (name, help, figure) in COUNTERS {
        let vec = sheet.counter(Opts::new(name, help), &SHARE)?;
        for (container, _, share) in shares(snapshot) {
            if let Some(figure) = figure(share) {
                vec.with_label_values(&labels(container, share)).inc_by(figure);
            }
        }
    }
    let refused = [&SHARE[..], &["reason"]].concat();
    let vec = sheet.counter(Opts::new("vgpu_memory_refused_total", "Memory requests refused"), &refused)?;
    for (container, _, share) in shares(snapshot) {
        let [namespace, pod, name, id, uuid] = labels(container, share);
        vec.with_label_values(&[namespace, pod, name, id, uuid, "limit"]).inc_by(share.refused as f64);
    }
    containers(sheet, snapshot)?;
    violations(sheet, snapshot, tally)?;
    let vec = sheet.gauge(Opts::new("vgpu_nvml_up", "Whether NVML is available (0 or 1)"), &[])?;
    vec.with_label_values::<&str>(&[]).set(f64::from(u8::from(snapshot.nvml_error.is_none())));
    let vec = sheet.gauge(Opts::new("vgpu_build_info", "Always 1, labelled with the version"), &["version"])?;
    vec.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    Ok(())
}

/// Writes how often each part of the monitor was started again.
pub fn write_restarts(sheet: &mut Sheet, restarts: &[(&str, u64)]) -> Result<()> {
    let vec = sheet.counter(Opts::new("vgpu_monitor_restarts_total", "Restarts of a part of the monitor that ended or hung"), &["part"])?;
    for (part, count) in restarts {
        vec.with_label_values(&[*part]).inc_by(*count as f64);
    }
    Ok(())
}

fn containers(sheet: &mut Sheet, snapshot: &Snapshot) -> Result<()> {
    let created = sheet.gauge(Opts::new("vgpu_container_created_timestamp_seconds", "Creation time of the container"), &CONTAINER)?;
    let damaged = sheet
        .gauge(Opts::new("vgpu_account_damaged", "Whether the container's account, limits or record are damaged (0 or 1)"), &CONTAINER)?;
    let changes = sheet.counter(Opts::new("vgpu_limit_changes_total", "Number of changes of the container's limits"), &CONTAINER)?;
    for container in &snapshot.containers {
        let [namespace, pod, name] = names(container);
        let labels = [namespace, pod, name, &container.id];
        created.with_label_values(&labels).set(container.created as f64);
        damaged.with_label_values(&labels).set(f64::from(u8::from(container.damaged.is_some())));
        changes.with_label_values(&labels).inc_by(container.changes as f64);
    }
    Ok(())
}

fn violations(sheet: &mut Sheet, snapshot: &Snapshot, tally: &impl Fn(&str) -> Tally) -> Result<()> {
    let kinds = [&CONTAINER[..], &["kind"]].concat();
    let lasting = sheet.gauge(Opts::new("vgpu_violations", "Current violations of the container's limits"), &kinds)?;
    let found = sheet.counter(Opts::new("vgpu_violations_total", "Violations of the container's limits found"), &kinds)?;
    let ended = sheet.counter(Opts::new("vgpu_processes_ended_total", "Processes of the container ended for violations"), &CONTAINER)?;
    for container in &snapshot.containers {
        let [namespace, pod, name] = names(container);
        let tally = tally(&container.dir_name);
        for (kind, (now, ever)) in Kind::ALL.into_iter().zip(tally.lasting.into_iter().zip(tally.found)) {
            let labels = [namespace, pod, name, &container.id, kind.name()];
            lasting.with_label_values(&labels).set(now as f64);
            found.with_label_values(&labels).inc_by(ever as f64);
        }
        ended.with_label_values(&[namespace, pod, name, &container.id]).inc_by(tally.ended as f64);
    }
    Ok(())
}
