//! Arrays and mipmapped arrays. The driver lays them out; what they take it tells for an array whose memory is mapped later.

mod layout;

use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

use vgpu_region::ledger::pages;

use super::account::{self, claim};
use super::known::{self, Current};
use super::table::Table;
use super::{GRANULE, GRANULE_PAGES, near, rounded_pages};
use crate::cuda::{
    ARRAY_DEFERRED, ARRAY_SPARSE, Array3dDescriptor, ArrayDescriptor, ArrayRequirements, Handle, OUT_OF_MEMORY, SUCCESS, Status,
};
use crate::driver;
use crate::session::Gpu;

/// Arrays by handle: bytes in the lower 48 bits, the context's place above.
static ARRAYS: Table = Table::new();
/// Shares of granules that small arrays have, in bytes, by device. They fill granule after granule (seen on driver 580).
static SMALL_BYTES: [AtomicU64; vgpu_region::MAX_GPUS] = [const { AtomicU64::new(0) }; vgpu_region::MAX_GPUS];

const BYTES: u64 = (1 << 48) - 1;

/// What an array like this takes in bytes, and the most that it can take where it has to be aligned: asked of the driver for a twin
/// without memory, else computed generously.
unsafe fn requirements(gpu: &Gpu, descriptor: &Array3dDescriptor, levels: u32) -> (u64, u64) {
    let twin = Array3dDescriptor { flags: descriptor.flags | ARRAY_DEFERRED, ..*descriptor };
    let mut handle = core::ptr::null_mut();
    let mut needs = ArrayRequirements::default();
    // SAFETY: the driver reads the descriptor, writes a handle and the requirements; the twin is destroyed at once.
    unsafe {
        let known = if levels == 0 {
            driver::array_create(&raw mut handle, &raw const twin) == SUCCESS && {
                let status = driver::array_requirements(&raw mut needs, handle, gpu.device);
                driver::array_destroy(handle);
                status == SUCCESS
            }
        } else {
            driver::mipmap_create(&raw mut handle, &raw const twin, levels) == SUCCESS && {
                let status = driver::mipmap_requirements(&raw mut needs, handle, gpu.device);
                driver::mipmap_destroy(handle);
                status == SUCCESS
            }
        };
        let bytes = if known { needs.size as u64 } else { layout::at_most(descriptor, levels) };
        (bytes, bytes.next_multiple_of((needs.alignment as u64).max(1)))
    }
}

/// Pages to charge when the bytes in small arrays go from one figure to another.
fn shared_pages(from: u64, to: u64) -> (u32, u32) {
    let granules = |bytes: u64| rounded_pages(bytes, GRANULE);
    (granules(to).saturating_sub(granules(from)), granules(from).saturating_sub(granules(to)))
}

/// Makes an array with `call`.
pub unsafe fn create_with(array: *mut Handle, descriptor: &Array3dDescriptor, levels: u32, call: impl FnOnce() -> Status) -> Status {
    if array.is_null() || descriptor.flags & (ARRAY_SPARSE | ARRAY_DEFERRED) != 0 {
        return call();
    }
    let Current { gpu, id, .. } = match known::current() {
        Ok(current) => current,
        Err(None) => return call(),
        Err(Some(status)) => return status,
    };
    // SAFETY: a descriptor that the program is about to use itself.
    let (said, most) = unsafe { requirements(gpu, descriptor, levels) };
    let bytes = if said == LEAST_SAID { layout::bytes(descriptor, levels).map_or(said, |bytes| bytes.min(said)) } else { said };
    let claim = match claim(gpu, rounded_pages(most, GRANULE)) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        return status;
    }
    // SAFETY: the driver has just written the handle.
    let handle = unsafe { *array };
    if !ARRAYS.insert(handle as u64, u64::from(id) << 48 | (bytes & BYTES)) {
        // What cannot be given back one day cannot be had.
        // SAFETY: the array was just made, and the program is about to hear that it was not.
        unsafe { if levels == 0 { driver::array_destroy(handle) } else { driver::mipmap_destroy(handle) } };
        claim.drop_all();
        return OUT_OF_MEMORY;
    }
    if bytes > SMALL {
        claim.settle(rounded_pages(bytes, GRANULE));
    } else {
        claim.settle(add_small(gpu, bytes));
        verify(gpu, most);
    }
    SUCCESS
}

/// Arrays up to this size are charged a share of a granule.
const SMALL: u64 = GRANULE / 2;

/// A small array's share of the granule that it lies in: no more of its size fit in there. What is too little is found by NVML, which is
/// asked before anything is taken near the limit while there are small arrays; what is too much never.
fn share(bytes: u64) -> u64 {
    GRANULE / (GRANULE / bytes.max(1)).max(1)
}

/// The least that the driver says an array needs by itself. Beside others small ones take what they are.
const LEAST_SAID: u64 = 64 << 10;

/// Whether there are small arrays on a GPU: what they take is an estimate.
#[inline]
pub fn has_small(gpu: &Gpu) -> bool {
    SMALL_BYTES.get(gpu.device as usize).is_some_and(|bytes| bytes.load(Relaxed) != 0)
}

/// Pages that the small arrays on a GPU may take beyond what they are charged for: no more than that again, and a granule.
pub fn uncertain(gpu: &Gpu) -> u64 {
    let bytes = SMALL_BYTES.get(gpu.device as usize).map_or(0, |bytes| bytes.load(Relaxed));
    if bytes == 0 { 0 } else { u64::from(rounded_pages(bytes, GRANULE)) + u64::from(GRANULE_PAGES) }
}

/// Pages of small arrays since NVML was last asked. Arrays of different sizes fit worse than the shares say, or better.
static UNVERIFIED: AtomicU64 = AtomicU64::new(0);

fn add_small(gpu: &Gpu, bytes: u64) -> u32 {
    let bytes = share(bytes);
    let Some(sum) = SMALL_BYTES.get(gpu.device as usize) else { return pages(bytes) };
    let before = sum.fetch_add(bytes, AcqRel);
    shared_pages(before, before + bytes).0
}

/// Asks NVML before what may be wrong about small arrays is an eighth of what is left: so they never lead past the limit.
fn verify(gpu: &Gpu, bytes: u64) {
    let unverified = UNVERIFIED.fetch_add(u64::from(pages(bytes)), AcqRel);
    if (unverified.saturating_mul(8) > gpu.left() || near::is_near(gpu)) && gpu.memory_limit().is_some() {
        UNVERIFIED.store(0, Release);
        super::truth::reconcile(gpu);
    }
}

fn give_back(gpu: &Gpu, bytes: u64) {
    let cost = match SMALL_BYTES.get(gpu.device as usize) {
        Some(sum) if bytes <= SMALL => {
            let bytes = share(bytes);
            let before = sum.fetch_sub(bytes, AcqRel);
            shared_pages(before, before.saturating_sub(bytes)).1
        }
        _ => rounded_pages(bytes, GRANULE),
    };
    account::release(gpu, cost);
}

/// `cuArrayCreate_v2`
pub unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, *const ArrayDescriptor) -> Status,
    array: *mut Handle,
    descriptor: *const ArrayDescriptor,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(&ArrayDescriptor { width, height, format, channels }) = descriptor.as_ref() else { return real(array, descriptor) };
        let descriptor_3d = Array3dDescriptor { width, height, depth: 0, format, channels, flags: 0 };
        create_with(array, &descriptor_3d, 0, || real(array, descriptor))
    }
}

/// `cuArray3DCreate_v2`
pub unsafe fn create_3d(
    real: unsafe extern "C" fn(*mut Handle, *const Array3dDescriptor) -> Status,
    array: *mut Handle,
    descriptor: *const Array3dDescriptor,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(known) = descriptor.as_ref() else { return real(array, descriptor) };
        create_with(array, known, 0, || real(array, descriptor))
    }
}

/// `cuMipmappedArrayCreate`
pub unsafe fn create_mipmapped(
    real: unsafe extern "C" fn(*mut Handle, *const Array3dDescriptor, u32) -> Status,
    array: *mut Handle,
    descriptor: *const Array3dDescriptor,
    levels: u32,
) -> Status {
    // SAFETY: the program's own arguments; null is the driver's to refuse.
    unsafe {
        let Some(known) = descriptor.as_ref() else { return real(array, descriptor, levels) };
        create_with(array, known, levels.max(1), || real(array, descriptor, levels))
    }
}

/// `cuArrayDestroy` and `cuMipmappedArrayDestroy`
pub unsafe fn destroy(real: unsafe extern "C" fn(Handle) -> Status, array: Handle) -> Status {
    let removed = ARRAYS.remove(array as u64);
    account::together(|| {
        // SAFETY: the program's own argument.
        let status = unsafe { real(array) };
        if let Some(value) = removed {
            match known::gpu_of((value >> 48) as u8) {
                Some(gpu) if status == SUCCESS => give_back(gpu, value & BYTES),
                _ => _ = ARRAYS.insert(array as u64, value),
            }
        }
        status
    })
}

/// A context is gone, and its arrays with it.
pub fn forget_context(gpu: &Gpu, id: u8) {
    for (array, record) in ARRAYS.iter() {
        if (record.load(core::sync::atomic::Ordering::Acquire) >> 48) as u8 == id
            && let Some(value) = ARRAYS.remove(array)
        {
            give_back(gpu, value & BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_fits_into_a_granule() {
        assert_eq!([1 << 16, 1 << 20, 700_000, 720_896].map(share), [1 << 16, 1 << 20, 1 << 20, 1 << 20]);
        assert_eq!(share(600_000), GRANULE / 3);
        assert_eq!((share(0), share(GRANULE)), (1, GRANULE));
    }

    #[test]
    fn the_smallest_take_what_an_h200_gave_them() {
        let floats = |width, height| Array3dDescriptor { width, height, depth: 0, format: 0x20, channels: 1, flags: 0 };
        let taken = [floats(1024, 0), floats(64, 64), floats(1, 1)].map(|descriptor| layout::bytes(&descriptor, 0));
        assert_eq!(taken, [Some(32 << 10), Some(16 << 10), Some(512)]);
    }

    #[test]
    fn small_arrays_fill_granules_together() {
        let granule = (GRANULE / vgpu_region::ledger::PAGE) as u32;
        assert_eq!(shared_pages(0, 1), (granule, 0));
        assert_eq!(shared_pages(1, GRANULE), (0, 0));
        assert_eq!(shared_pages(GRANULE, GRANULE + 1), (granule, 0));
        assert_eq!(shared_pages(GRANULE + 1, GRANULE), (0, granule));
    }
}
