//! What NVML and the driver say is on a GPU.

use crate::loader::driver;
use crate::nvml_query;
use crate::os::list::List;
use crate::session::Gpu;
use vgpu_cuda_abi::nvml::Process;

/// More processes than a container has slots cannot be its own.
const MOST: usize = vgpu_region::region::SLOTS;

/// NVML's list of the processes on one GPU, as far as this PID namespace shows them.
#[derive(Debug)]
pub struct Processes(List<Process, MOST>);

impl Processes {
    /// Whether this PID is on the list.
    pub fn contains(&self, pid: u32) -> bool {
        self.find(pid).is_some()
    }

    /// What a process holds in bytes, if it is on the list and NVML can tell.
    pub fn bytes_of(&self, pid: u32) -> Option<u64> {
        // All ones is NVML's "not available".
        self.find(pid).map(|process| process.used).filter(|&used| used != u64::MAX)
    }

    fn find(&self, pid: u32) -> Option<&Process> {
        self.0.as_slice().iter().find(|process| process.pid == pid)
    }
}

/// Who is on the GPU now. `None` if NVML cannot tell.
pub fn processes(gpu: &Gpu) -> Option<Processes> {
    let mut list = List::new();
    nvml_query::compute_processes(gpu.uuid, &mut list)?;
    Some(Processes(list))
}

/// What this process holds on the GPU in bytes, by NVML; managed memory is not in it.
pub fn own_bytes(gpu: &Gpu) -> Option<u64> {
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() } as u32;
    processes(gpu)?.bytes_of(pid)
}

/// What the current device has free in bytes, for all.
pub fn device_free() -> usize {
    let _capture = driver::CaptureRelaxed::enter();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two integers.
    unsafe { driver::memory_info(&raw mut free, &raw mut total) };
    free
}
