//! GPUs that appear and disappear.

use std::sync::{Arc, Mutex};

use vgpu_config::inventory::Gpu;
use vgpu_dra::discovery::{GpuInfo, GpuSource, Machine};

/// Returns the UUID of a simulated GPU by its number.
pub fn uuid(number: usize) -> String {
    format!("GPU-516d6770-7500-4000-8000-{number:012}")
}

/// Returns the name of the device of a simulated GPU.
pub fn device(number: usize) -> String {
    uuid(number).to_ascii_lowercase()
}

/// Returns a GPU of 24 GiB.
pub fn gpu_info(number: usize) -> GpuInfo {
    let index = number as u32;
    let gpu = Gpu { index, uuid: uuid(number), name: "Simulated GPU".to_owned(), memory: 24 << 30, minor: Some(index), mig: Vec::new() };
    GpuInfo {
        gpu,
        architecture: Some("Hopper".to_owned()),
        address: Some(format!("0000:{number:02x}:00.0")),
        pcie_root: Some("pci0000:00".to_owned()),
        numa: Some(0),
        partitioned: false,
        partitions: Vec::new(),
    }
}

/// Source of GPUs that a test changes.
#[derive(Clone)]
pub struct Gpus(Arc<Mutex<Result<Vec<usize>, String>>>);

impl Gpus {
    /// Returns a source of these GPUs.
    pub fn with(numbers: impl IntoIterator<Item = usize>) -> Self {
        let gpus = Self(Arc::new(Mutex::new(Ok(Vec::new()))));
        gpus.set(numbers);
        gpus
    }

    /// Sets the GPUs.
    pub fn set(&self, numbers: impl IntoIterator<Item = usize>) {
        *self.0.lock().unwrap() = Ok(numbers.into_iter().collect());
    }

    /// Makes the source fail from now on, like a driver that does not answer.
    pub fn fail(&self) {
        *self.0.lock().unwrap() = Err("no driver".to_owned());
    }
}

impl GpuSource for Gpus {
    fn discover(&self) -> Result<Machine, String> {
        let numbers = self.0.lock().unwrap().clone()?;
        Ok(Machine { driver: Some("580.95.05".to_owned()), cuda: Some(13000), gpus: numbers.into_iter().map(gpu_info).collect() })
    }
}
