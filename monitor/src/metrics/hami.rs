//! HAMi's metrics: those of its node monitor, those of its scheduler that its dashboard needs, and the former names of both.

use prometheus::{GaugeVec, Opts, Result};

use serde::{Deserialize, Serialize};

use super::sheet::{Sheet, names, of_gpu, shares};
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

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).const_label("zone", "vGPU")
}

/// Returns used memory in bytes. HAMi's monitor reports its library's account, so the account counts unless NVML reports more.
fn used(share: &Share) -> u64 {
    share.charged.max(share.held.unwrap_or(0))
}

/// Sets a container's value. A restarted container has the labels of its predecessor, which may still be listed; containers are sorted by
/// age, so the newest wins.
fn set(vec: &GaugeVec, container: &ContainerState, nth: usize, share: &Share, value: f64) {
    let [namespace, pod, name] = names(container);
    vec.with_label_values(&[namespace, pod, name, &nth.to_string(), &share.uuid]).set(value);
}

pub(super) fn write(sheet: &mut Sheet, snapshot: &Snapshot, node: &str, dialect: Dialect) -> Result<()> {
    host(sheet, snapshot, node, dialect.legacy)?;
    containers(sheet, snapshot, dialect.legacy)?;
    if dialect.scheduler { scheduler(sheet, snapshot, node) } else { Ok(()) }
}

fn device_type(gpu: &Gpu) -> String {
    format!("NVIDIA-{}", gpu.name)
}

type Figure<T> = fn(&T) -> Option<f64>;

fn host(sheet: &mut Sheet, snapshot: &Snapshot, node: &str, legacy: bool) -> Result<()> {
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
    for (name, help, labels, figure) in all {
        let vec = sheet.gauge(opts(name, help), &labels)?;
        for gpu in &snapshot.gpus {
            let index = gpu.index.to_string();
            if let Some(figure) = figure(gpu) {
                vec.with_label_values(&[node, &index, &gpu.uuid, &device_type(gpu)]).set(figure);
            }
        }
    }
    Ok(())
}

fn containers(sheet: &mut Sheet, snapshot: &Snapshot, legacy: bool) -> Result<()> {
    let now = snapshot.time;
    let memory = |share: &Share| Some(used(share) as f64);
    let limit = |share: &Share| Some(share.memory_limit.map_or_else(|| total(snapshot, share), |bytes| bytes as f64));
    let context = |share: &Share| Some(share.overhead.min(used(share)) as f64);
    let module = |_: &Share| Some(0.0);
    let buffer = |share: &Share| Some(used(share).saturating_sub(share.overhead) as f64);
    let busy = |share: &Share| Some(share.utilization.unwrap_or(0.0));
    let kernel = move |share: &Share| share.last_kernel.map(|at| (now - at).max(0.0).floor());
    type Of<'a> = &'a dyn Fn(&Share) -> Option<f64>;
    let mut all: Vec<(&str, &str, [&str; 5], Of<'_>)> = vec![
        ("hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes", CONTAINER, &memory),
        ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit in bytes", CONTAINER, &limit),
        (
            "hami_vgpu_memory_context_bytes",
            "Container device memory context size in bytes (contexts, modules, stacks)",
            CONTAINER,
            &context,
        ),
        ("hami_vgpu_memory_module_bytes", "Container device memory module size in bytes (counted with the contexts)", CONTAINER, &module),
        ("hami_vgpu_memory_buffer_bytes", "Container device memory buffer size in bytes", CONTAINER, &buffer),
        ("hami_container_device_memory_bytes", "Container device memory usage in bytes", CONTAINER, &memory),
        ("hami_container_device_utilization_ratio", "Container device SM utilization ratio (0-100)", CONTAINER, &busy),
        ("hami_container_last_kernel_elapsed_seconds", "Seconds since last kernel execution in container", CONTAINER, &kernel),
    ];
    if legacy {
        all.push(("vGPU_device_memory_usage_in_bytes", "vGPU device usage", CONTAINER_LEGACY, &memory));
        all.push(("vGPU_device_memory_limit_in_bytes", "vGPU device limit", CONTAINER_LEGACY, &limit));
        all.push(("Device_utilization_desc_of_container", "Container device utilization description", CONTAINER_LEGACY, &busy));
        all.push(("Device_last_kernel_of_container", "Container device last kernel description", CONTAINER_LEGACY, &kernel));
    }
    for (name, help, labels, figure) in all {
        let vec = sheet.gauge(opts(name, help), &labels)?;
        for (container, nth, share) in shares(snapshot) {
            if let Some(figure) = figure(share) {
                set(&vec, container, nth, share, figure);
            }
        }
    }
    if legacy { legacy_description(sheet, snapshot) } else { Ok(()) }
}

/// Writes the former metric that has the parts of the used memory as labels.
fn legacy_description(sheet: &mut Sheet, snapshot: &Snapshot) -> Result<()> {
    let parts = ["context", "module", "data", "offset"];
    let labels = [&CONTAINER_LEGACY[..], &parts].concat();
    let vec = sheet.gauge(opts("Device_memory_desc_of_container", "Container device memory description"), &labels)?;
    for (container, nth, share) in shares(snapshot) {
        let [namespace, pod, name] = names(container);
        let (nth, context) = (nth.to_string(), share.overhead.min(used(share)));
        let (context, data) = (context.to_string(), (used(share) - context).to_string());
        let values = [namespace, pod, name, &nth, &share.uuid, &context, "0", &data, "0"];
        vec.with_label_values(&values).set(used(share) as f64);
    }
    Ok(())
}

/// Returns the GPU's memory in bytes, which is the limit of a container without one.
fn total(snapshot: &Snapshot, share: &Share) -> f64 {
    snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map_or(0.0, |gpu| gpu.memory as f64)
}

/// Writes the metrics of HAMi's scheduler: what is allocated of each GPU.
fn scheduler(sheet: &mut Sheet, snapshot: &Snapshot, node: &str) -> Result<()> {
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
        let vec = sheet.gauge(opts(name, help), &NODE)?;
        for gpu in &snapshot.gpus {
            vec.with_label_values(&[node, &gpu.uuid, &gpu.index.to_string(), &device_type(gpu)]).set(figure(gpu));
        }
    }
    let labels = ["node", "device_uuid", "device_index", "device_cores", "device_type"];
    let vec = sheet.gauge(opts("hami_gpu_memory_allocated_bytes", "Device memory allocated for a certain GPU"), &labels)?;
    for gpu in &snapshot.gpus {
        let cores = cores(gpu).to_string();
        vec.with_label_values(&[node, &gpu.uuid, &gpu.index.to_string(), &cores, &device_type(gpu)]).set(memory(gpu));
    }
    Ok(())
}
