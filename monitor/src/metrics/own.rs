//! Metrics of vgpu's own.

use super::sheet::{Labels, Sheet, labelled, names, newest};
use super::tally::Tally;
use crate::account::Moves;
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};
use crate::violations::Kind;

type Figure = fn(&Share) -> Option<f64>;

/// Gauges of a share: name, help, value. A value of `None` is left out.
const GAUGES: [(&str, &str, Figure); 11] = [
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
    ("vgpu_memory_moved_out_bytes", "Memory of the container moved to the host while others need the GPU's", |share| {
        Some(share.moved_out as f64)
    }),
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

type MovesFigure = fn(&Moves) -> f64;

/// Counters of a share's moves, with a label for the direction.
const MOVES: [(&str, &str, MovesFigure); 3] = [
    ("vgpu_memory_moves_total", "Moves of the container's memory to the host (out) and back to the GPU (in)", |moves| moves.count as f64),
    ("vgpu_memory_moved_bytes_total", "Memory of the container moved to the host (out) and back to the GPU (in)", |moves| {
        moves.bytes as f64
    }),
    (
        "vgpu_memory_move_seconds_total",
        "Time of the moves of the container's memory to the host (out) and back to the GPU (in, with the wait for room)",
        |moves| moves.took_ns as f64 / 1e9,
    ),
];

type GpuFigure = fn(&Gpu) -> f64;

/// Gauges of the processes on a GPU that belong to no container with limits.
const UNLIMITED: [(&str, &str, GpuFigure); 2] = [
    ("vgpu_unlimited_processes", "Processes on the GPU that belong to no container with limits", |gpu| gpu.unlimited.len() as f64),
    (
        "vgpu_unlimited_memory_bytes",
        "Device memory of processes that belong to no container with limits, as far as NVML reports it",
        |gpu| gpu.unlimited.iter().filter_map(|process| process.held).sum::<u64>() as f64,
    ),
];

pub(super) fn write(sheet: &mut Sheet, snapshot: &Snapshot, tally: &impl Fn(&str) -> Tally) {
    let shares = labelled(snapshot, |container, _, share| share_labels(container, share, []));
    for (name, help, figure) in GAUGES {
        let mut gauge = sheet.gauge(name, help);
        for (labels, _, share) in &shares {
            if let Some(figure) = figure(share) {
                gauge.sample(labels, figure);
            }
        }
    }
    for (name, help, figure) in COUNTERS {
        let mut counter = sheet.counter(name, help);
        for (labels, _, share) in &shares {
            if let Some(figure) = figure(share) {
                counter.sample(labels, figure);
            }
        }
    }
    write_moves(sheet, &shares);
    let mut refused = sheet.counter("vgpu_memory_refused_total", "Memory requests refused");
    for (_, container, share) in &shares {
        refused.sample(&share_labels(container, share, [("reason", "limit")]), share.refused as f64);
    }
    let containers = snapshot.containers.iter().map(|container| (container_labels(container, []), container)).collect();
    let containers: Vec<(Labels, &ContainerState)> = newest(containers, |(labels, _)| labels);
    write_containers(sheet, &containers);
    write_violations(sheet, &containers, tally);
    write_unlimited(sheet, snapshot);
    let is_up = f64::from(u8::from(snapshot.nvml_error.is_none()));
    sheet.gauge("vgpu_nvml_up", "Whether NVML is available (0 or 1)").sample(&Labels::default(), is_up);
    let version = Labels::new([("version", env!("CARGO_PKG_VERSION"))]);
    sheet.gauge("vgpu_build_info", "Always 1, labelled with the version").sample(&version, 1.0);
}

/// Writes the moves of each share.
fn write_moves(sheet: &mut Sheet, shares: &[(Labels, &ContainerState, &Share)]) {
    let of = |&(_, container, share): &(Labels, &ContainerState, &Share)| {
        [("out", share.moves_out), ("in", share.moves_in)]
            .map(|(direction, moves)| (share_labels(container, share, [("direction", direction)]), moves))
    };
    let moves: Vec<(Labels, Moves)> = shares.iter().flat_map(of).collect();
    for (name, help, figure) in MOVES {
        let mut counter = sheet.counter(name, help);
        moves.iter().for_each(|(labels, moves)| counter.sample(labels, figure(moves)));
    }
}

/// Writes the figures of the processes without limits, of each GPU whose processes NVML lists.
fn write_unlimited(sheet: &mut Sheet, snapshot: &Snapshot) {
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.processes_known);
    let labelled: Vec<(Labels, &Gpu)> = gpus.map(|gpu| (Labels::new([("device_uuid", gpu.uuid.as_str())]), gpu)).collect();
    for (name, help, figure) in UNLIMITED {
        let mut gauge = sheet.gauge(name, help);
        labelled.iter().for_each(|(labels, gpu)| gauge.sample(labels, figure(gpu)));
    }
}

/// Returns a container's labels, with `more`.
fn container_labels<const N: usize>(container: &ContainerState, more: [(&str, &str); N]) -> Labels {
    let [namespace, pod, name] = names(container);
    let own = [("namespace", namespace), ("pod", pod), ("container", name), ("container_id", container.id.as_str())];
    Labels::new(own.into_iter().chain(more))
}

/// Returns a share's labels, with `more`.
fn share_labels<const N: usize>(container: &ContainerState, share: &Share, more: [(&str, &str); N]) -> Labels {
    let [namespace, pod, name] = names(container);
    let id = container.id.as_str();
    let own = [("namespace", namespace), ("pod", pod), ("container", name), ("container_id", id), ("device_uuid", share.uuid.as_str())];
    Labels::new(own.into_iter().chain(more))
}

/// Writes how often each part of the monitor was started again.
pub fn write_restarts(sheet: &mut Sheet, restarts: &[(&str, u64)]) {
    let mut counter = sheet.counter("vgpu_monitor_restarts_total", "Restarts of a part of the monitor that ended or hung");
    for (part, count) in restarts {
        counter.sample(&Labels::new([("part", *part)]), *count as f64);
    }
}

fn write_containers(sheet: &mut Sheet, containers: &[(Labels, &ContainerState)]) {
    let mut created = sheet.gauge("vgpu_container_created_timestamp_seconds", "Creation time of the container");
    containers.iter().for_each(|(labels, container)| created.sample(labels, container.created as f64));
    let mut damaged = sheet.gauge("vgpu_account_damaged", "Whether the container's account, limits or record are damaged (0 or 1)");
    containers.iter().for_each(|(labels, container)| damaged.sample(labels, f64::from(u8::from(container.damaged.is_some()))));
    let mut changes = sheet.counter("vgpu_limit_changes_total", "Number of changes of the container's limits");
    containers.iter().for_each(|(labels, container)| changes.sample(labels, container.changes as f64));
}

fn write_violations(sheet: &mut Sheet, containers: &[(Labels, &ContainerState)], tally: &impl Fn(&str) -> Tally) {
    let by_kind = |container: &ContainerState| Kind::ALL.map(|kind| container_labels(container, [("kind", kind.name())]));
    let tallied: Vec<(&Labels, [Labels; Kind::ALL.len()], Tally)> =
        containers.iter().map(|(labels, container)| (labels, by_kind(container), tally(&container.dir_name))).collect();
    let mut lasting = sheet.gauge("vgpu_violations", "Current violations of the container's limits");
    for (_, kinds, tally) in &tallied {
        kinds.iter().zip(tally.lasting).for_each(|(labels, count)| lasting.sample(labels, count as f64));
    }
    let mut found = sheet.counter("vgpu_violations_total", "Violations of the container's limits found");
    for (_, kinds, tally) in &tallied {
        kinds.iter().zip(tally.found).for_each(|(labels, count)| found.sample(labels, count as f64));
    }
    let mut ended = sheet.counter("vgpu_processes_ended_total", "Processes of the container ended for violations");
    tallied.iter().for_each(|(labels, _, tally)| ended.sample(labels, tally.ended as f64));
}
