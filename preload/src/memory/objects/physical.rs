//! Physical memory (`cuMemCreate`), which lives while a handle, a mapping or another keeper does.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use vgpu_region::ledger::pages;

use crate::memory::granules::GRANULE;
use crate::memory::ledger::account;
use crate::memory::objects::handle_map::Table;
use crate::memory::objects::physical_counts::{By, MOST, Physical};
use crate::memory::objects::virtual_handles;
use crate::session;
use vgpu_cuda_abi::cuda::{Device, DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// [`Physical`] records by handle, packed.
pub static HANDLES: Table = Table::new();
/// Handles by the address of a mapping.
pub static MAPPINGS: Table = Table::new();

/// Counts one more reference to a handle's memory. Returns `Ok(false)` if the memory is not charged here.
///
/// # Errors
/// Returns CUDA's out-of-memory code if there are more than can be counted.
pub fn add_one(handle: u64, by: By) -> Result<bool, Status> {
    let Some(record) = HANDLES.get(handle) else { return Ok(false) };
    let more = |word| {
        let mut physical = Physical::unpack(word);
        let count = physical.count(by);
        *count += 1;
        (*count <= MOST).then(|| physical.pack())
    };
    record.fetch_update(AcqRel, Acquire, more).map(|_| true).map_err(|_| OUT_OF_MEMORY)
}

/// Removes a reference. Called before the driver does, as the handle may be given to another thread at once. Returns the record that must
/// be given back if the driver succeeds; `None` if there was no such reference, which the driver will refuse.
pub fn drop_one(handle: u64, by: By) -> Option<Physical> {
    let less = |word| {
        let mut physical = Physical::unpack(word);
        let count = physical.count(by);
        *count = count.checked_sub(1)?;
        Some(physical.pack())
    };
    let mut now = Physical::unpack(HANDLES.get(handle)?.fetch_update(AcqRel, Acquire, less).ok()?);
    *now.count(by) -= 1;
    if now.is_unreferenced() {
        HANDLES.remove(handle);
    }
    Some(now)
}

/// Returns the device and the granules of a handle's memory while it is charged here.
pub fn charged(handle: u64) -> Option<(Device, u32)> {
    HANDLES.get(handle).map(|record| Physical::unpack(record.load(Acquire))).map(|physical| (physical.device, physical.granules))
}

/// Returns the handle that is mapped at an address, if a mapping begins there.
pub fn mapped_at(address: DevicePtr) -> Option<u64> {
    MAPPINGS.get(address).map(|handle| handle.load(Acquire))
}

/// Returns offsets from `address` and handles of the mappings that a range touches. The first may begin before it.
pub fn mapped_in(address: DevicePtr, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    MAPPINGS.iter().filter_map(move |(start, handle)| {
        let handle = handle.load(Acquire);
        let (_, granules) = charged(handle)?;
        let touches = start < address.saturating_add(bytes) && address < start + u64::from(granules) * GRANULE;
        touches.then_some((start.saturating_sub(address), handle))
    })
}

/// Counts one more keeper of the memory, as a mapping. Returns `Ok(false)` if the memory is not charged here.
///
/// # Errors
/// Returns CUDA's out-of-memory code if there are more than can be counted.
pub fn keep(handle: u64) -> Result<bool, Status> {
    add_one(handle, By::Mapping)
}

/// Undoes [`keep`].
pub fn unkeep(handle: u64) {
    if let Some(physical) = drop_one(handle, By::Mapping) {
        give_back(handle, physical);
    }
}

/// Gives back the memory of a handle, and what an object keeps, if nothing refers to it any more.
pub fn give_back(handle: u64, physical: Physical) {
    if !physical.is_unreferenced() {
        return;
    }
    if physical.is_object() {
        forget_owner(handle);
    }
    virtual_handles::end(handle);
    if let Some(gpu) = session::ready().and_then(|session| session.gpu(physical.device)) {
        account::release(gpu, pages(u64::from(physical.granules) * GRANULE));
    }
}

/// Records a handle of this many granules.
#[cfg(test)]
pub fn record_for_test(handle: u64, granules: u32) {
    HANDLES.insert(handle, Physical { granules, device: 0, handles: 1, mappings: 0 }.pack());
}

/// Releases it.
#[cfg(test)]
pub fn release_for_test(handle: u64) {
    drop_one(handle, By::Handle);
}

/// An object that keeps the memory of a handle: a sparse array or a multicast object. `owner` is 0 in a free place and 1 in one being
/// written.
pub struct Keeper {
    /// Handle of the object.
    pub owner: AtomicU64,
    /// Offset in the object, in bytes.
    offset: AtomicU64,
    /// Handle of the memory that is kept.
    handle: AtomicU64,
}

/// All keepers.
pub static KEEPERS: [Keeper; 1024] =
    [const { Keeper { owner: AtomicU64::new(0), offset: AtomicU64::new(0), handle: AtomicU64::new(0) } }; 1024];

/// One above the highest place ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Records that `owner` keeps the memory of `handle`, once for each offset. Returns true if that is new.
///
/// # Errors
/// Returns CUDA's out-of-memory code if it cannot be recorded.
pub fn add(owner: u64, offset: u64, handle: u64) -> Result<bool, Status> {
    let same = |keeper: &&Keeper| {
        keeper.owner.load(Acquire) == owner && keeper.offset.load(Relaxed) == offset && keeper.handle.load(Relaxed) == handle
    };
    if charged(handle).is_none() || KEEPERS.iter().any(|keeper| same(&keeper)) {
        return Ok(false);
    }
    let free = |keeper: &Keeper| keeper.owner.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
    let Some((place, keeper)) = KEEPERS.iter().enumerate().find(|(_, keeper)| free(keeper)) else { return Err(OUT_OF_MEMORY) };
    USED.fetch_max(place + 1, AcqRel);
    keeper.offset.store(offset, Relaxed);
    keeper.handle.store(handle, Relaxed);
    let kept = keep(handle);
    // Memory that was released during this function is not kept.
    keeper.owner.store(if kept == Ok(true) { owner } else { 0 }, Release);
    kept
}

/// Removes the keepers for which `which` is true, given owner, offset and handle.
pub fn remove(which: impl Fn(u64, u64, u64) -> bool) {
    for keeper in KEEPERS.iter().take(USED.load(Acquire)) {
        let owner = keeper.owner.load(Acquire);
        let is_meant = owner > 1 && which(owner, keeper.offset.load(Relaxed), keeper.handle.load(Relaxed));
        if is_meant && keeper.owner.compare_exchange(owner, 1, AcqRel, Relaxed).is_ok() {
            let handle = keeper.handle.load(Relaxed);
            keeper.owner.store(0, Release);
            unkeep(handle);
        }
    }
}

/// Removes all that a destroyed array or multicast object kept.
pub fn forget_owner(owner: u64) {
    remove(|there, _, _| there == owner);
}

/// Bit of an owner that is being released. Its handle may belong to a new object by the time that its keepers are removed.
const RELEASING: u64 = 1 << 63;

/// Changes the owner of all that `from` keeps to `to`.
fn rename(from: u64, to: u64) {
    for keeper in KEEPERS.iter().take(USED.load(Acquire)) {
        _ = keeper.owner.compare_exchange(from, to, AcqRel, Relaxed);
    }
}

/// Releases an object with `call`, and then what it keeps, unless the call fails.
pub fn release_object(owner: u64, call: impl FnOnce() -> Status) -> Status {
    rename(owner, owner | RELEASING);
    let status = call();
    if status == SUCCESS {
        forget_owner(owner | RELEASING)
    } else {
        rename(owner | RELEASING, owner)
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_all_mappings_that_it_meets() {
        let (first, start) = (0x7000_0401, 0x7e00_0000_0000);
        for (place, handle) in (first..first + 3).enumerate() {
            record_for_test(handle, 2);
            MAPPINGS.insert(start + place as u64 * 2 * GRANULE, handle);
        }
        let touched = |from: u64, bytes: u64| {
            let mut touched: Vec<_> = mapped_in(start + from, bytes).collect();
            touched.sort_unstable();
            touched
        };
        assert_eq!(touched(0, 6 * GRANULE), [(0, first), (2 * GRANULE, first + 1), (4 * GRANULE, first + 2)]);
        assert_eq!(touched(GRANULE, 1), [(0, first)]);
        assert_eq!(touched(GRANULE, GRANULE + 1), [(0, first), (GRANULE, first + 1)]);
        assert_eq!(touched(6 * GRANULE, GRANULE), []);
    }
}
