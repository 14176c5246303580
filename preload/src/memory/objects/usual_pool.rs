//! The pool of each device that `cuMemAllocAsync` allocates from.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use crate::loader::driver;
use crate::memory::objects::pool_table::{Pool, find_or_record};
use crate::os::mmap;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS};

/// A device's present pool.
pub struct Usual {
    /// Its handle.
    pub pool: Handle,
    /// Its record.
    pub entry: &'static Pool,
}

/// The usual pools, by device; null until they are asked for.
static USUAL: [AtomicPtr<Usual>; vgpu_region::MAX_GPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; vgpu_region::MAX_GPUS];

/// Returns the usual pool of a GPU. `None` if the driver has none, or it cannot be recorded.
#[inline]
pub fn usual(gpu: &Gpu) -> Option<&'static Usual> {
    // SAFETY: null or what `look_up_usual` made, which is never freed.
    unsafe { USUAL.get(gpu.device as usize)?.load(Acquire).as_ref() }.or_else(|| look_up_usual(gpu))
}

/// Asks the driver for the usual pool of a GPU and records it.
#[cold]
fn look_up_usual(gpu: &Gpu) -> Option<&'static Usual> {
    let (mut pool, forgotten) = (core::ptr::null_mut(), FORGOTTEN.load(Acquire));
    // SAFETY: the driver writes one handle.
    if unsafe { driver::device_pool(&raw mut pool, gpu.device) } != SUCCESS {
        return None;
    }
    let entry = find_or_record(pool)?;
    let fresh: *mut Usual = mmap::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped, and never freed.
    unsafe {
        fresh.write(Usual { pool, entry });
        let usual = USUAL.get(gpu.device as usize)?;
        usual.store(fresh, Release);
        // Another thread may have set or destroyed it since.
        if FORGOTTEN.load(Acquire) != forgotten {
            usual.store(core::ptr::null_mut(), Release);
        }
        Some(&*fresh)
    }
}

/// Number of calls of [`forget_usual`].
static FORGOTTEN: AtomicU32 = AtomicU32::new(0);

/// Makes the next allocations ask the driver for the usual pools again.
pub fn forget_usual() {
    FORGOTTEN.fetch_add(1, AcqRel);
    USUAL.iter().for_each(|usual| usual.store(core::ptr::null_mut(), Release));
}
