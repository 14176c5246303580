//! The pool that each device's allocations come from unless another is named.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use crate::loader::driver;
use crate::memory::objects::pool_table::{Pool, known_of};
use crate::os::mmap;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{Handle, SUCCESS};

/// The pool that `cuMemAllocAsync` takes from on each device, until a program sets another.
pub struct Usual {
    pub pool: Handle,
    pub known: &'static Pool,
}

static USUAL: [AtomicPtr<Usual>; vgpu_region::MAX_GPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; vgpu_region::MAX_GPUS];

/// The usual pool of a GPU. `None` if the driver has none.
#[inline]
pub fn usual(gpu: &Gpu) -> Option<&'static Usual> {
    // SAFETY: null or what `look_up_usual` made, which is never freed.
    unsafe { USUAL.get(gpu.device as usize)?.load(Acquire).as_ref() }.or_else(|| look_up_usual(gpu))
}

#[cold]
fn look_up_usual(gpu: &Gpu) -> Option<&'static Usual> {
    let (mut pool, forgotten) = (core::ptr::null_mut(), FORGOTTEN.load(Acquire));
    // SAFETY: the driver writes one handle.
    if unsafe { driver::device_pool(&raw mut pool, gpu.device) } != SUCCESS {
        return None;
    }
    let known = known_of(pool)?;
    let fresh: *mut Usual = mmap::allocate();
    if fresh.is_null() {
        return None;
    }
    // SAFETY: freshly mapped, and never freed.
    unsafe {
        fresh.write(Usual { pool, known });
        let usual = USUAL.get(gpu.device as usize)?;
        usual.store(fresh, Release);
        // It may have been set or destroyed meanwhile.
        if FORGOTTEN.load(Acquire) != forgotten {
            usual.store(core::ptr::null_mut(), Release);
        }
        Some(&*fresh)
    }
}

/// How often that was.
static FORGOTTEN: AtomicU32 = AtomicU32::new(0);

/// The usual pools have to be asked for again.
pub fn forget_usual() {
    FORGOTTEN.fetch_add(1, AcqRel);
    USUAL.iter().for_each(|usual| usual.store(core::ptr::null_mut(), Release));
}
