//! What the machine has: its GPUs as NVML sees them, and where they are plugged in.

use std::fs;
use std::path::{Path, PathBuf};

use nvml_wrapper::Device;
use serde::{Deserialize, Serialize};
use vgpu_config::inventory::Gpu;
use vgpu_monitor::gpus::{Gpus, explain};
pub use vgpu_monitor::mig::Partition;

/// The machine's GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The driver's version, such as `580.95.05`.
    #[serde(default)]
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports, in NVML's form: 13000 is 13.0.
    #[serde(default)]
    pub cuda: Option<i32>,
    /// Those that work.
    pub gpus: Vec<GpuInfo>,
}

/// A GPU, and what beyond the inventory is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// As the inventory has it, without its partitions.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Such as `Hopper`.
    #[serde(default)]
    pub architecture: Option<String>,
    /// Its address in sysfs' form, `0000:17:00.0`.
    #[serde(default)]
    pub address: Option<String>,
    /// The PCIe root that it hangs below, `pci0000:16`.
    #[serde(default)]
    pub pcie_root: Option<String>,
    /// The NUMA node that it is next to.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Whether it can only be used in pieces.
    #[serde(default)]
    pub partitioned: bool,
    /// The pieces.
    #[serde(default)]
    pub partitions: Vec<Partition>,
}

/// Where the GPUs are learnt of.
pub trait GpuSource: Send + Sync {
    /// Looks at the GPUs. One that does not work is left out.
    ///
    /// # Errors
    /// Nothing can be told of any, with why.
    fn discover(&self) -> Result<Machine, String>;
}

/// NVML of this machine's driver. It is opened anew each time: what has been opened does not see GPUs come and go.
#[derive(Clone, Debug)]
pub struct NvmlSource {
    /// The root of sysfs.
    pub sysfs: PathBuf,
}

impl GpuSource for NvmlSource {
    fn discover(&self) -> Result<Machine, String> {
        let gpus = Gpus::open().map_err(|error| explain(&error))?;
        let nvml = gpus.nvml();
        let count = nvml.device_count().map_err(|error| explain(&error))?;
        let found = (0..count).filter_map(|index| self.found(&gpus, nvml.device_by_index(index).ok()?));
        Ok(Machine { driver: nvml.sys_driver_version().ok(), cuda: nvml.sys_cuda_driver_version().ok(), gpus: found.collect() })
    }
}

impl NvmlSource {
    /// One GPU; `None` if it does not answer as one that works.
    fn found(&self, gpus: &Gpus, device: Device<'_>) -> Option<GpuInfo> {
        let gpu = gpus.gpu(&device).ok()?;
        let address = device.pci_info().ok().map(|info| sysfs_address(&info.bus_id));
        let of_device = address.as_ref().map(|address| self.sysfs.join("bus/pci/devices").join(address));
        let partitioned = device.mig_mode().is_ok_and(|mode| mode.current != 0);
        Some(GpuInfo {
            architecture: device.architecture().ok().map(|architecture| architecture.to_string()),
            pcie_root: of_device.as_deref().and_then(pcie_root),
            numa: of_device.and_then(|folder| fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()),
            address,
            partitions: gpus.partitions(&device),
            partitioned,
            gpu,
        })
    }
}

/// NVML's address, whose domain has eight digits, as sysfs has it.
fn sysfs_address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => format!("{}:{rest}", &domain[4..]),
        _ => lower,
    }
}

/// The folder below `/sys/devices` in which a PCI device lies.
fn pcie_root(device: &Path) -> Option<String> {
    let real = device.canonicalize().ok()?;
    let root = real.components().map(|part| part.as_os_str().to_string_lossy()).find(|part| part.starts_with("pci") && part.contains(':'));
    root.map(|root| root.into_owned())
}

/// GPUs that are written down in a file, for machines whose driver cannot be asked from here.
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
    fn places_are_found_in_sysfs() {
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
