//! The host's GPUs according to NVML, and the processes that have contexts on them.

use std::collections::HashMap;
use std::time::Instant;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vgpu_config::inventory::{Gpu, Inventory};

use crate::gpu_time::{Cursor, Usage};
use crate::mig::{self, Partition};
use crate::nvml;
pub use crate::nvml::explain;

/// NVML, loaded and initialised.
#[derive(Debug)]
pub struct Gpus {
    nvml: Nvml,
    /// Places in the samples of GPU time, by UUID.
    cursors: HashMap<String, Cursor>,
}

/// Momentary state of a GPU or MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`, or a MIG device's `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Total memory in bytes.
    pub memory: u64,
    /// Used memory in bytes.
    pub memory_used: u64,
    /// Percent of the last sample period in which the GPU was busy. `None` if NVML does not report it.
    pub utilization: Option<u32>,
    /// Processes with a context on the GPU. `None` if NVML could not list them this time.
    pub processes: Option<Vec<Holder>>,
    /// GPU time of its processes. `None` if NVML cannot tell.
    pub usage: Option<Usage>,
}

/// Process with a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// PID on the host.
    pub pid: u32,
    /// Held memory in bytes. `None` if NVML does not report it.
    pub memory: Option<u64>,
}

impl Gpus {
    /// Loads NVML, `libnvidia-ml.so.1`.
    ///
    /// # Errors
    /// There is no driver, or it does not work.
    pub fn open() -> Result<Self, NvmlError> {
        nvml::load().map(|nvml| Self { nvml, cursors: HashMap::new() })
    }

    fn devices(&self) -> Result<Vec<Device<'_>>, NvmlError> {
        (0..self.nvml.device_count()?).map(|index| self.nvml.device_by_index(index)).collect()
    }

    /// Returns the GPUs of this machine and their MIG devices, for the inventory file.
    ///
    /// # Errors
    /// A call to NVML failed.
    pub fn inventory(&self) -> Result<Inventory, NvmlError> {
        Ok(Inventory { gpus: self.devices()?.iter().map(|device| self.gpu(device)).collect::<Result<_, NvmlError>>()? })
    }

    /// Returns the inventory entry of one GPU.
    ///
    /// # Errors
    /// A call to NVML failed.
    pub fn gpu(&self, device: &Device<'_>) -> Result<Gpu, NvmlError> {
        Ok(Gpu {
            index: device.index()?,
            uuid: device.uuid()?,
            name: device.name()?,
            memory: nvml::memory(&self.nvml, device)?.0,
            minor: device.minor_number().ok(),
            mig: self.partitions(device).into_iter().map(|partition| partition.mig).collect(),
        })
    }

    /// Returns the MIG devices of a GPU. Empty unless it is in MIG mode.
    #[must_use]
    pub fn partitions(&self, device: &Device<'_>) -> Vec<Partition> {
        let is_partitioned = device.mig_mode().is_ok_and(|mode| mode.current != 0);
        if is_partitioned { mig::partitions(&self.nvml, device) } else { Vec::new() }
    }

    /// Returns the underlying NVML, for its other calls.
    #[must_use]
    pub fn nvml(&self) -> &Nvml {
        &self.nvml
    }

    /// Returns the state of the inventory's GPUs and MIG devices, without those that NVML fails to describe.
    #[must_use]
    pub fn states(&mut self, inventory: &Inventory) -> Vec<State> {
        let all = inventory.gpus.iter().flat_map(|gpu| {
            let partitions = gpu.mig.iter().map(|mig| mig.uuid.as_str());
            [gpu.uuid.as_str()].into_iter().chain(partitions).map(move |uuid| (gpu, uuid))
        });
        all.filter_map(|(gpu, uuid)| self.state(gpu, uuid).ok()).collect()
    }

    /// Returns the state of `gpu` or of its MIG device, whichever has this UUID.
    fn state(&mut self, gpu: &Gpu, uuid: &str) -> Result<State, NvmlError> {
        let device = self.nvml.device_by_uuid(uuid)?;
        let cursor = self.cursors.entry(uuid.to_owned()).or_insert_with(|| Cursor::new(Instant::now()));
        let (memory, memory_used) = nvml::memory(&self.nvml, &device)?;
        Ok(State {
            index: gpu.index,
            uuid: uuid.to_owned(),
            name: gpu.name.clone(),
            memory,
            memory_used,
            utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
            processes: holders(&device),
            usage: cursor.read(&device),
        })
    }
}

/// Lists the processes on a GPU. `None` if NVML fails, or the list grows faster than it can be read.
fn holders(device: &Device<'_>) -> Option<Vec<Holder>> {
    let listed = nvml::processes(device).ok()?;
    let memory = |memory: UsedGpuMemory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let mut holders: HashMap<u32, Option<u64>> = HashMap::new();
    for process in listed {
        let more = memory(process.used_gpu_memory);
        holders.entry(process.pid).and_modify(|known| *known = known.zip(more).map(|(known, more)| known + more)).or_insert(more);
    }
    let mut holders: Vec<Holder> = holders.into_iter().map(|(pid, memory)| Holder { pid, memory }).collect();
    holders.sort_unstable_by_key(|holder| holder.pid);
    Some(holders)
}
