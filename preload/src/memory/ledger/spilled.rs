//! The account of memory that lies on the host for want of room on the device.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;

use crate::loader::driver;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, SUCCESS, Status};

/// Not CUDA's: the share has no room, and the host may have. Never seen by a program.
pub const ELSEWHERE: Status = -1;
/// Set when something of this process first lies on the host: others need not look.
pub static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether anything of this process has ever been spilled.
#[inline]
pub fn is_in_use() -> bool {
    IN_USE.load(Relaxed)
}

/// How many pages of the container may lie on the host; 0 is none. Without concurrent access from host and device, managed memory
/// moves to the device whole whenever a kernel runs, and there is no spilling.
pub fn ceiling(gpu: &Gpu) -> u64 {
    let Some(limit) = gpu.limit.filter(|_| gpu.memory_limit().is_some()) else { return 0 };
    let pages = limit.spill.load(Relaxed) / PAGE;
    if pages == 0 {
        return 0;
    }
    let mut concurrent = 0;
    // SAFETY: the driver writes one integer.
    let status = unsafe { driver::device_attribute(&raw mut concurrent, ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, gpu.device) };
    if status == SUCCESS && concurrent != 0 { pages } else { 0 }
}

/// What is left of the ceiling, and the ceiling, in bytes.
pub fn room(gpu: &Gpu) -> (u64, u64) {
    let ceiling = ceiling(gpu);
    (ceiling.saturating_sub(gpu.account.spilled.pages()) * PAGE, ceiling * PAGE)
}

/// Gives back what a block on the host cost.
#[cold]
pub fn give_back(gpu: &Gpu, pages: u32) {
    gpu.charge.spill.release(&gpu.account.spilled, pages);
}
