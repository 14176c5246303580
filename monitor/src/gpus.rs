//! What NVML says: which GPUs there are, and who holds how much of them.

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vgpu_config::inventory::{Gpu, Inventory};

use crate::mig::{self, Partition};

/// NVML, loaded and initialised.
#[derive(Debug)]
pub struct Gpus(Nvml);

/// One GPU as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`, or a MIG device's `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// All of its memory, in bytes.
    pub memory: u64,
    /// What is in use of it, in bytes.
    pub memory_used: u64,
    /// Percent of the last sample period in which it was busy; `None` where NVML does not tell.
    pub utilization: Option<u32>,
    /// Who has a context on it. `None` where NVML could not tell this time.
    pub processes: Option<Vec<Holder>>,
}

/// A process that has a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its PID on the host.
    pub pid: u32,
    /// What it holds, in bytes; `None` where NVML does not tell.
    pub memory: Option<u64>,
    /// Percent of the GPU's time that it had of late; `None` where NVML does not tell.
    pub utilization: Option<u32>,
}

impl Gpus {
    /// Loads NVML, `libnvidia-ml.so.1`.
    ///
    /// # Errors
    /// There is no driver, or it does not work.
    pub fn open() -> Result<Self, NvmlError> {
        // The unversioned name is for developers; machines that only run things lack it.
        Ok(Self(Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init()?))
    }

    fn devices(&self) -> Result<Vec<Device<'_>>, NvmlError> {
        (0..self.0.device_count()?).map(|index| self.0.device_by_index(index)).collect()
    }

    /// The GPUs of this machine and their MIG devices, for the inventory's file.
    ///
    /// # Errors
    /// NVML's own.
    pub fn inventory(&self) -> Result<Inventory, NvmlError> {
        Ok(Inventory { gpus: self.devices()?.iter().map(|device| self.gpu(device)).collect::<Result<_, NvmlError>>()? })
    }

    /// One of them.
    ///
    /// # Errors
    /// NVML's own.
    pub fn gpu(&self, device: &Device<'_>) -> Result<Gpu, NvmlError> {
        Ok(Gpu {
            index: device.index()?,
            uuid: device.uuid()?,
            name: device.name()?,
            memory: device.memory_info()?.total,
            minor: device.minor_number().ok(),
            mig: self.partitions(device).into_iter().map(|partition| partition.mig).collect(),
        })
    }

    /// The pieces of a GPU in MIG mode.
    #[must_use]
    pub fn partitions(&self, device: &Device<'_>) -> Vec<Partition> {
        let partitioned = device.mig_mode().is_ok_and(|mode| mode.current != 0);
        if partitioned { mig::partitions(&self.0, device) } else { Vec::new() }
    }

    /// NVML itself, for what else it tells.
    #[must_use]
    pub fn nvml(&self) -> &Nvml {
        &self.0
    }

    /// How the GPUs of `inventory` are now, and their MIG devices. One that NVML cannot tell of is left out.
    #[must_use]
    pub fn states(&self, inventory: &Inventory) -> Vec<State> {
        let all = inventory.gpus.iter().flat_map(|gpu| {
            let pieces = gpu.mig.iter().map(|mig| mig.uuid.as_str());
            [gpu.uuid.as_str()].into_iter().chain(pieces).map(move |uuid| (gpu, uuid))
        });
        all.filter_map(|(gpu, uuid)| self.state(gpu, uuid).ok()).collect()
    }

    /// A GPU, or the piece of it with this UUID.
    fn state(&self, gpu: &Gpu, uuid: &str) -> Result<State, NvmlError> {
        let device = self.0.device_by_uuid(uuid)?;
        let memory = device.memory_info()?;
        Ok(State {
            index: gpu.index,
            uuid: uuid.to_owned(),
            name: gpu.name.clone(),
            memory: memory.total,
            memory_used: memory.used,
            utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
            processes: holders(&device),
        })
    }
}

/// Why NVML cannot be asked, for people.
#[must_use]
pub fn explain(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 cannot be loaded, so there may be no driver".to_owned(),
        other => other.to_string(),
    }
}

/// The list can grow between asking for its length and for itself; then it is asked for again.
fn holders(device: &Device<'_>) -> Option<Vec<Holder>> {
    let listed = (0..5).find_map(|_| match device.running_compute_processes() {
        Err(NvmlError::InsufficientSize(_)) => None,
        other => Some(other),
    });
    let listed = listed?.ok()?;
    let memory = |memory: UsedGpuMemory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let mut holders: Vec<Holder> = Vec::new();
    for process in listed {
        let known = holders.iter_mut().find(|known| known.pid == process.pid);
        match (known, memory(process.used_gpu_memory)) {
            (Some(known), more) => known.memory = known.memory.zip(more).map(|(known, more)| known + more),
            (None, memory) => holders.push(Holder { pid: process.pid, memory, utilization: None }),
        }
    }
    // Sorted by time: the last sample of each process counts.
    let mut samples = if holders.is_empty() { Vec::new() } else { device.process_utilization_stats(None).unwrap_or_default() };
    samples.sort_by_key(|sample| sample.timestamp);
    for sample in samples {
        if let Some(holder) = holders.iter_mut().find(|holder| holder.pid == sample.pid) {
            holder.utilization = Some(sample.sm_util.min(100));
        }
    }
    Some(holders)
}
