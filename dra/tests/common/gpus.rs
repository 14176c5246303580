//! GPUs that appear and disappear.

use std::sync::{Arc, Condvar, Mutex};

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
        fault: None,
    }
}

/// Source of GPUs that a test changes.
#[derive(Clone)]
pub struct Gpus(Arc<(Mutex<State>, Condvar)>);

/// Answer of a source.
struct State {
    numbers: Result<Vec<usize>, String>,
    /// True if the source does not answer.
    hangs: bool,
    /// Number of polls that have begun.
    polls: usize,
    /// GPU with a fault.
    faulty: Option<usize>,
}

impl Gpus {
    /// Returns a source of these GPUs.
    pub fn with(numbers: impl IntoIterator<Item = usize>) -> Self {
        let state = State { numbers: Ok(numbers.into_iter().collect()), hangs: false, polls: 0, faulty: None };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    /// Sets the GPUs.
    pub fn set(&self, numbers: impl IntoIterator<Item = usize>) {
        self.0.0.lock().unwrap().numbers = Ok(numbers.into_iter().collect());
    }

    /// Makes the source fail from now on, like a driver that is not loaded.
    pub fn fail(&self) {
        self.0.0.lock().unwrap().numbers = Err("no driver".to_owned());
    }

    /// Makes the source hang from now on, or answer again.
    pub fn hang(&self, hangs: bool) {
        self.0.0.lock().unwrap().hangs = hangs;
        self.0.1.notify_all();
    }

    /// Sets the GPU that has a fault.
    pub fn set_fault(&self, number: Option<usize>) {
        self.0.0.lock().unwrap().faulty = number;
    }

    /// Returns the number of polls that have begun.
    pub fn polls(&self) -> usize {
        self.0.0.lock().unwrap().polls
    }
}

impl GpuSource for Gpus {
    fn discover(&self) -> Result<Machine, String> {
        let mut state = self.0.0.lock().unwrap();
        state.polls += 1;
        let state = self.0.1.wait_while(state, |state| state.hangs).unwrap();
        let numbers = state.numbers.clone()?;
        let info =
            |number| GpuInfo { fault: (state.faulty == Some(number)).then(|| "2 uncorrectable ECC errors".to_owned()), ..gpu_info(number) };
        Ok(Machine { driver: Some("580.95.05".to_owned()), cuda: Some(13000), gpus: numbers.into_iter().map(info).collect() })
    }
}
