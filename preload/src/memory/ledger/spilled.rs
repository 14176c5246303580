//! The account of memory that lies on the host because the device has no room for it.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;

use crate::loader::driver;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, Status};

/// Status, not one of CUDA's, of an allocation that the share has no room for but the host may have. Programs never see it.
pub const MAY_SPILL: Status = -1;
/// Set by the process's first allocation on the host. Until then no address needs to be looked up.
pub static IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns true if an allocation of this process was ever put on the host.
#[inline]
pub fn is_in_use() -> bool {
    IN_USE.load(Relaxed)
}

/// Returns the number of the container's pages that may lie on the host; 0 if none may. On devices without concurrent managed access,
/// managed memory moves to the device as a whole whenever a kernel runs, so nothing is put on the host.
pub fn ceiling(gpu: &Gpu) -> u64 {
    let Some(limit) = gpu.limit.filter(|_| gpu.memory_limit().is_some()) else { return 0 };
    let pages = limit.spill.load(Relaxed) / PAGE;
    if pages == 0 {
        return 0;
    }
    if driver::attribute_of(gpu.device, ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0 { pages } else { 0 }
}

/// Returns what is left of the ceiling, and the ceiling, in bytes.
pub fn room(gpu: &Gpu) -> (u64, u64) {
    let ceiling = ceiling(gpu);
    (ceiling.saturating_sub(gpu.account.spilled.pages()) * PAGE, ceiling * PAGE)
}

/// Gives back the charge of a block on the host.
#[cold]
pub fn give_back(gpu: &Gpu, pages: u32) {
    gpu.charge.spill.release(&gpu.account.spilled, pages);
}
