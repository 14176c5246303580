//! Discovery of the machine's GPUs through NVML, and of their place in the PCIe topology through sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use serde::{Deserialize, Serialize};
use vgpu_config::inventory::Gpu;
use vgpu_monitor::gpus::{Gpus, explain};
pub use vgpu_monitor::mig::Partition;

/// Snapshot of the machine's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the NVIDIA driver, such as `580.95.05`.
    #[serde(default)]
    pub driver: Option<String>,
    /// Newest CUDA version that the driver supports, in NVML's encoding: 13000 is 13.0.
    #[serde(default)]
    pub cuda: Option<i32>,
    /// GPUs that work.
    pub gpus: Vec<GpuInfo>,
}

/// GPU of the inventory, with attributes that the inventory does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// GPU as in the inventory, without its partitions.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Architecture, such as `Hopper`.
    #[serde(default)]
    pub architecture: Option<String>,
    /// PCI address in the form of sysfs: `0000:17:00.0`.
    #[serde(default)]
    pub address: Option<String>,
    /// PCIe root complex, such as `pci0000:16`.
    #[serde(default)]
    pub pcie_root: Option<String>,
    /// Nearest NUMA node.
    #[serde(default)]
    pub numa: Option<u32>,
    /// True if the GPU is in MIG mode, so that only its partitions can be used.
    #[serde(default)]
    pub partitioned: bool,
    /// MIG partitions.
    #[serde(default)]
    pub partitions: Vec<Partition>,
    /// Why the GPU should get no further work, though it answers.
    #[serde(default)]
    pub fault: Option<String>,
}

/// Source of GPU snapshots.
pub trait GpuSource: Send + Sync {
    /// Returns the GPUs that work.
    ///
    /// # Errors
    /// The source as a whole does not answer, for example because the driver is not loaded.
    fn discover(&self) -> Result<Machine, String>;
}

/// NVML of this machine's driver. It is reopened for each snapshot, as an open NVML does not notice GPUs that appear or disappear.
#[derive(Clone, Debug)]
pub struct NvmlSource {
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
}

impl GpuSource for NvmlSource {
    fn discover(&self) -> Result<Machine, String> {
        let gpus = Gpus::open().map_err(|error| explain(&error))?;
        let nvml = gpus.nvml();
        let count = nvml.device_count().map_err(|error| explain(&error))?;
        let working = (0..count).filter_map(|index| self.gpu_info(&gpus, nvml.device_by_index(index).ok()?));
        Ok(Machine { driver: nvml.sys_driver_version().ok(), cuda: nvml.sys_cuda_driver_version().ok(), gpus: working.collect() })
    }
}

impl NvmlSource {
    /// Returns one GPU, or `None` if it does not answer.
    fn gpu_info(&self, gpus: &Gpus, device: Device<'_>) -> Option<GpuInfo> {
        let gpu = gpus.gpu(&device).ok()?;
        let address = device.pci_info().ok().map(|info| sysfs_address(&info.bus_id));
        let sysfs_dir = address.as_ref().map(|address| self.sysfs.join("bus/pci/devices").join(address));
        let partitioned = device.mig_mode().is_ok_and(|mode| mode.current != 0);
        Some(GpuInfo {
            architecture: device.architecture().ok().map(|architecture| architecture.to_string()),
            pcie_root: sysfs_dir.as_deref().and_then(pcie_root),
            numa: sysfs_dir.and_then(|folder| fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()),
            address,
            partitions: gpus.partitions(&device),
            partitioned,
            fault: fault(&device),
            gpu,
        })
    }
}

/// Returns the fault of a GPU by its counter of memory errors that could not be corrected since the driver was loaded. GPUs without ECC have
/// no such counter.
fn fault(device: &Device<'_>) -> Option<String> {
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok().filter(|errors| *errors > 0)?;
    Some(format!("{errors} uncorrectable ECC errors since the driver was loaded: expected none"))
}

/// Converts NVML's PCI address, whose domain has eight digits, to the form of sysfs.
fn sysfs_address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => format!("{}:{rest}", &domain[4..]),
        _ => lower,
    }
}

/// Returns the PCIe root complex of a PCI device: its directory directly below `/sys/devices`.
fn pcie_root(device: &Path) -> Option<String> {
    let real = device.canonicalize().ok()?;
    let root = real.components().map(|part| part.as_os_str().to_string_lossy()).find(|part| part.starts_with("pci") && part.contains(':'));
    root.map(|root| root.into_owned())
}

/// JSON file of GPUs, for machines whose driver cannot be reached from this process.
#[derive(Clone, Debug)]
pub struct FileSource(pub PathBuf);

impl GpuSource for FileSource {
    fn discover(&self) -> Result<Machine, String> {
        let text = fs::read(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcie_root_is_read_from_sysfs() {
        assert_eq!(sysfs_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_address("0000:3B:00.0"), "0000:3b:00.0");
        let sysfs = tempfile::tempdir().unwrap();
        let real = sysfs.path().join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        fs::create_dir_all(&real).unwrap();
        let link = sysfs.path().join("bus");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(pcie_root(&link).as_deref(), Some("pci0000:3a"));
        assert_eq!(pcie_root(&sysfs.path().join("none")), None);
    }
}
