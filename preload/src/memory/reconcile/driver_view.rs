//! Memory on a GPU as NVML and the driver report it.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;

use crate::loader::driver;
use crate::nvml_query;
use crate::os::list::List;
use crate::residency::gate;
use crate::session::Gpu;
use vgpu_cuda_abi::nvml::Process;

/// A container has no more processes than slots.
const MOST: usize = vgpu_region::region::SLOTS;

/// NVML's list of the processes on one GPU that this PID namespace shows.
#[derive(Debug)]
pub struct Processes(List<Process, MOST>);

impl Processes {
    /// Returns true if this PID is on the list.
    pub fn contains(&self, pid: u32) -> bool {
        self.find(pid).is_some()
    }

    /// Returns the bytes that a process holds, if it is on the list and NVML can tell.
    pub fn bytes_of(&self, pid: u32) -> Option<u64> {
        // All ones is NVML's "not available".
        self.find(pid).map(|process| process.used).filter(|&used| used != u64::MAX)
    }

    /// Returns a process's entry in NVML's list.
    fn find(&self, pid: u32) -> Option<&Process> {
        self.0.as_slice().iter().find(|process| process.pid == pid)
    }
}

/// Returns the processes on the GPU now. `None` if NVML cannot tell.
pub fn processes(gpu: &Gpu) -> Option<Processes> {
    let mut list = List::new();
    nvml_query::compute_processes(gpu.uuid, &mut list)?;
    Some(Processes(list))
}

/// Returns the bytes that this process holds on the GPU, by NVML, without managed memory. What was moved to the host counts as held.
pub fn own_bytes(gpu: &Gpu) -> Option<u64> {
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() } as u32;
    gate::at_rest(|| Some(processes(gpu)?.bytes_of(pid)? + u64::from(gpu.charge.out.load(Relaxed)) * PAGE))
}

/// Returns the bytes that are free on the current device.
pub fn device_free() -> usize {
    let _capture = driver::CaptureRelaxed::enter();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two integers.
    unsafe { driver::memory_info(&raw mut free, &raw mut total) };
    free
}
