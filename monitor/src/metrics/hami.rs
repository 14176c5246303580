//! HAMi's metrics: those of its node monitor, those of its scheduler that its dashboard needs, and the former names of both.

use serde::{Deserialize, Serialize};

use super::sheet::{Labels, Sheet, labelled, names, of_gpu};
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};

/// HAMi's metrics to expose besides those of its node monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dialect {
    /// Metrics of HAMi's scheduler, for its dashboard. Unwanted if that scheduler runs.
    pub scheduler: bool,
    /// Names used before HAMi 2.9.
    pub legacy: bool,
}

const HOST: [&str; 4] = ["node", "device_index", "device_uuid", "device_type"];
const HOST_LEGACY: [&str; 4] = ["nodeid", "deviceidx", "deviceuuid", "devicetype"];
const NODE: [&str; 4] = ["node", "device_uuid", "device_index", "device_type"];
const CONTAINER: [&str; 5] = ["namespace", "pod", "container", "vdevice_index", "device_uuid"];
const CONTAINER_LEGACY: [&str; 5] = ["podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"];

/// Label of all of HAMi's metrics.
const ZONE: (&str, &str) = ("zone", "vGPU");

/// Returns labels of these names and values, with [`ZONE`].
fn labels<'a>(names: impl IntoIterator<Item = &'a str>, values: impl IntoIterator<Item = &'a str>) -> Labels {
    Labels::new(names.into_iter().zip(values).chain([ZONE]))
}

/// Returns the labels of a container's share by their names, with `more` values.
fn share_labels<'a>(all: &[&'a str], container: &'a ContainerState, nth: &'a str, share: &'a Share, more: &[&'a str]) -> Labels {
    let [namespace, pod, name] = names(container);
    labels(all.iter().copied(), [namespace, pod, name, nth, &share.uuid].into_iter().chain(more.iter().copied()))
}

/// Returns used memory in bytes. HAMi's monitor reports its library's account, so the account counts unless NVML reports more.
fn used(share: &Share) -> u64 {
    share.charged.max(share.held.unwrap_or(0))
}

pub(super) fn write(sheet: &mut Sheet, snapshot: &Snapshot, node: &str, dialect: Dialect) {
    host(sheet, snapshot, node, dialect.legacy);
    containers(sheet, snapshot, dialect.legacy);
    if dialect.scheduler {
        scheduler(sheet, snapshot, node);
    }
}

fn device_type(gpu: &Gpu) -> String {
    format!("NVIDIA-{}", gpu.name)
}

type Figure<T> = fn(&T) -> Option<f64>;

fn host(sheet: &mut Sheet, snapshot: &Snapshot, node: &str, legacy: bool) {
    let memory: Figure<Gpu> = |gpu| gpu.memory_used.map(|bytes| bytes as f64);
    let busy: Figure<Gpu> = |gpu| gpu.utilization.map(f64::from);
    let mut all = vec![
        ("hami_host_gpu_memory_used_bytes", "GPU device memory usage in bytes", HOST, memory),
        ("hami_host_gpu_utilization_ratio", "GPU core utilization ratio (0-100)", HOST, busy),
    ];
    if legacy {
        all.push(("HostGPUMemoryUsage", "GPU device memory usage", HOST_LEGACY, memory));
        all.push(("HostCoreUtilization", "GPU core utilization", HOST_LEGACY, busy));
    }
    for (name, help, names, figure) in all {
        let mut gauge = sheet.gauge(name, help);
        for gpu in &snapshot.gpus {
            let index = gpu.index.to_string();
            if let Some(figure) = figure(gpu) {
                gauge.sample(&labels(names, [node, &index, &gpu.uuid, &device_type(gpu)]), figure);
            }
        }
    }
}

fn containers(sheet: &mut Sheet, snapshot: &Snapshot, legacy: bool) {
    let now = snapshot.time;
    let memory = |share: &Share| Some(used(share) as f64);
    let limit = |share: &Share| Some(share.memory_limit.map_or_else(|| total(snapshot, share), |bytes| bytes as f64));
    let context = |share: &Share| Some(share.overhead.min(used(share)) as f64);
    let module = |_: &Share| Some(0.0);
    let buffer = |share: &Share| Some(used(share).saturating_sub(share.overhead) as f64);
    let busy = |share: &Share| Some(share.utilization.unwrap_or(0.0));
    let kernel = move |share: &Share| share.last_kernel.map(|at| (now - at).max(0.0).floor());
    type Of<'a> = &'a dyn Fn(&Share) -> Option<f64>;
    let labelled_by =
        |names: &[&str]| labelled(snapshot, |container, nth, share| share_labels(names, container, &nth.to_string(), share, &[]));
    let modern: [(&str, &str, Of<'_>); 8] = [
        ("hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes", &memory),
        ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit in bytes", &limit),
        ("hami_vgpu_memory_context_bytes", "Container device memory context size in bytes (contexts, modules, stacks)", &context),
        ("hami_vgpu_memory_module_bytes", "Container device memory module size in bytes (counted with the contexts)", &module),
        ("hami_vgpu_memory_buffer_bytes", "Container device memory buffer size in bytes", &buffer),
        ("hami_container_device_memory_bytes", "Container device memory usage in bytes", &memory),
        ("hami_container_device_utilization_ratio", "Container device SM utilization ratio (0-100)", &busy),
        ("hami_container_last_kernel_elapsed_seconds", "Seconds since last kernel execution in container", &kernel),
    ];
    let shares = labelled_by(&CONTAINER);
    for (name, help, figure) in modern {
        write_gauge(sheet, name, help, &shares, figure);
    }
    if legacy {
        let shares = labelled_by(&CONTAINER_LEGACY);
        let former: [(&str, &str, Of<'_>); 4] = [
            ("vGPU_device_memory_usage_in_bytes", "vGPU device usage", &memory),
            ("vGPU_device_memory_limit_in_bytes", "vGPU device limit", &limit),
            ("Device_utilization_desc_of_container", "Container device utilization description", &busy),
            ("Device_last_kernel_of_container", "Container device last kernel description", &kernel),
        ];
        for (name, help, figure) in former {
            write_gauge(sheet, name, help, &shares, figure);
        }
        legacy_description(sheet, snapshot);
    }
}

/// Writes a gauge of the shares for which `figure` returns a value.
fn write_gauge(
    sheet: &mut Sheet,
    name: &str,
    help: &str,
    shares: &[(Labels, &ContainerState, &Share)],
    figure: &dyn Fn(&Share) -> Option<f64>,
) {
    let mut gauge = sheet.gauge(name, help);
    for (labels, _, share) in shares {
        if let Some(figure) = figure(share) {
            gauge.sample(labels, figure);
        }
    }
}

/// Writes the former metric that has the parts of the used memory as labels.
fn legacy_description(sheet: &mut Sheet, snapshot: &Snapshot) {
    let names = [&CONTAINER_LEGACY[..], &["context", "module", "data", "offset"]].concat();
    let all = labelled(snapshot, |container, nth, share| {
        let context = share.overhead.min(used(share));
        let (nth, context, data) = (nth.to_string(), context.to_string(), (used(share) - context).to_string());
        share_labels(&names, container, &nth, share, &[&context, "0", &data, "0"])
    });
    let memory = |share: &Share| Some(used(share) as f64);
    write_gauge(sheet, "Device_memory_desc_of_container", "Container device memory description", &all, &memory);
}

/// Returns the GPU's memory in bytes, which is the limit of a container without one.
fn total(snapshot: &Snapshot, share: &Share) -> f64 {
    snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map_or(0.0, |gpu| gpu.memory as f64)
}

/// Writes the metrics of HAMi's scheduler: what is allocated of each GPU.
fn scheduler(sheet: &mut Sheet, snapshot: &Snapshot, node: &str) {
    let memory = |gpu: &Gpu| of_gpu(snapshot, gpu).map(|share| share.memory_limit.unwrap_or(gpu.memory) as f64).sum::<f64>();
    let cores = |gpu: &Gpu| of_gpu(snapshot, gpu).map(|share| f64::from(share.cores.unwrap_or(0))).sum::<f64>();
    let ratio = |gpu: &Gpu| if gpu.memory == 0 { 0.0 } else { memory(gpu) / gpu.memory as f64 };
    type Of<'a> = &'a dyn Fn(&Gpu) -> f64;
    let all: [(&str, &str, Of<'_>); 5] = [
        ("hami_gpu_memory_limit_bytes", "Device memory limit for a certain GPU", &|gpu| gpu.memory as f64),
        ("hami_gpu_core_limit_ratio", "Device core limit for a certain GPU", &|_| 100.0),
        ("hami_gpu_shared_count", "Number of containers sharing this GPU", &|gpu| of_gpu(snapshot, gpu).count() as f64),
        ("hami_gpu_core_allocated_ratio", "Device core allocated for a certain GPU", &cores),
        ("hami_node_gpu_memory_allocated_ratio", "GPU Memory Allocated Percentage on a certain GPU", &ratio),
    ];
    for (name, help, figure) in all {
        let mut gauge = sheet.gauge(name, help);
        for gpu in &snapshot.gpus {
            gauge.sample(&labels(NODE, [node, &gpu.uuid, &gpu.index.to_string(), &device_type(gpu)]), figure(gpu));
        }
    }
    let names = ["node", "device_uuid", "device_index", "device_cores", "device_type"];
    let mut gauge = sheet.gauge("hami_gpu_memory_allocated_bytes", "Device memory allocated for a certain GPU");
    for gpu in &snapshot.gpus {
        let cores = cores(gpu).to_string();
        gauge.sample(&labels(names, [node, &gpu.uuid, &gpu.index.to_string(), &cores, &device_type(gpu)]), memory(gpu));
    }
}
