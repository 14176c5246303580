//! Memory that this process has exported.

use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::orphans::{BY_NAME, BY_SEVERAL, is_kept, mark};
use crate::memory::objects::physical;
use vgpu_cuda_abi::cuda::DevicePtr;

/// Handles of exported physical memory and addresses of exported linear memory, with the [`mark`] of the descriptor that keeps it.
pub static EXPORTED: Table = Table::new();

/// Returns true if a handle or an address is exported.
pub fn is_exported(key: u64) -> bool {
    !EXPORTED.is_unused() && EXPORTED.get(key).is_some()
}

/// Records an export with the mark of its descriptor.
pub fn record(key: u64, by: u64) {
    match EXPORTED.get(key) {
        None if EXPORTED.insert(key, by) => {}
        // Without a record it must not move: it counts as kept for good.
        None => _ = physical::keep(key),
        Some(known) if is_kept(known.load(Relaxed)) => known.store(if by == BY_NAME { known.load(Relaxed) } else { BY_SEVERAL }, Relaxed),
        Some(known) => known.store(by, Relaxed),
    }
}

/// Returns the mark of an export. Kind 1 of `cuMemExportToShareableHandle` and of `cuMemGetHandleForAddressRange` is a descriptor.
///
/// # Safety
/// The driver has written a handle of this kind to `out`.
pub unsafe fn mark_of(out: *const c_void, kind: i32) -> u64 {
    // SAFETY: the driver has just written an integer there.
    if kind == 1 { mark(unsafe { out.cast::<i32>().read_unaligned() }) } else { BY_NAME }
}

/// Returns the keys of what a range is part of: physical memory that is mapped there, or an allocation.
pub fn keys_in(address: DevicePtr, bytes: u64) -> impl Iterator<Item = u64> {
    let mapped = move || physical::mapped_in(address, bytes).map(|(_, handle)| handle);
    let allocation = mapped().next().is_none().then(|| key_of(address));
    mapped().chain(allocation)
}

/// Returns the key of the allocation or the physical memory that an address lies in.
pub fn key_of(address: DevicePtr) -> u64 {
    let (mut base, mut size) = (address, 0);
    // SAFETY: the driver writes into the two variables.
    unsafe { driver::address_range(&raw mut base, &raw mut size, address) };
    physical::mapped_at(base).unwrap_or(base)
}
