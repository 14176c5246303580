//! Calls that would move memory from the host to the device: prefetches go to the host instead, and advice about its location is ignored.

use crate::hooks::spill::{SET_ACCESSED_BY, is_spilled};
use crate::loader::driver;
use crate::memory::granules::GRANULE;
use crate::memory::ledger::spilled::is_in_use;
use vgpu_cuda_abi::cuda::{Device, DevicePtr, INVALID_VALUE, LOCATION_HOST, Location, SUCCESS, Status};

/// The host as a location.
pub const HOST: Location = Location { kind: LOCATION_HOST, id: 0 };

/// Calls `each` with every part of a range that lies in one allocation, and whether that lies on the host, until one fails. An unknown rest
/// is one part, for the driver to judge.
pub fn each_part(address: DevicePtr, bytes: usize, mut each: impl FnMut(DevicePtr, usize, bool) -> Status) -> Status {
    let end = address.saturating_add(bytes as u64);
    let mut at = address;
    while at < end {
        let (mut base, mut size) = (0, 0);
        // SAFETY: the driver writes into the two variables, or fails.
        let found = unsafe { driver::address_range(&raw mut base, &raw mut size, at) } == SUCCESS && size != 0;
        let border = (at & !(GRANULE - 1)) + GRANULE;
        let (stop, spilled) = match found {
            true => (base.saturating_add(size as u64), is_spilled(base)),
            // Behind an allocation, in its last granule.
            false if at != border - GRANULE => (border, is_spilled(at)),
            false => (end, false),
        };
        let stop = stop.clamp(at + 1, end);
        let status = each(at, (stop - at) as usize, spilled);
        if status != SUCCESS {
            return status;
        }
        at = stop;
    }
    SUCCESS
}

/// Prefetches a range with `call`, which gets whether the part must go to the host.
#[inline]
pub fn prefetch(address: DevicePtr, bytes: usize, call: impl Fn(DevicePtr, usize, bool) -> Status) -> Status {
    if !is_in_use() || bytes == 0 { call(address, bytes, false) } else { each_part(address, bytes, call) }
}

/// Arguments of a batched prefetch: location `n` is for the ranges from `indices[n]` on.
#[derive(Debug)]
pub struct Batch {
    /// First addresses of the ranges.
    pub addresses: *mut DevicePtr,
    /// Their lengths in bytes.
    pub sizes: *mut usize,
    /// Number of ranges.
    pub count: usize,
    /// Locations to prefetch to.
    pub locations: *mut Location,
    /// First range of each location.
    pub indices: *mut usize,
    /// Number of locations.
    pub location_count: usize,
}

/// Prefetches a batch: `whole`, or, if memory may lie on the host, `one` range after the other.
pub unsafe fn prefetch_batch(batch: &Batch, whole: impl FnOnce() -> Status, one: impl Fn(DevicePtr, usize, Location) -> Status) -> Status {
    let &Batch { addresses, sizes, count, locations, indices, location_count } = batch;
    let lists = [addresses.is_null(), sizes.is_null(), locations.is_null(), indices.is_null()];
    if !is_in_use() || lists.contains(&true) || location_count == 0 {
        return whole();
    }
    // SAFETY: as the caller promises.
    let (addresses, sizes, locations, indices) = unsafe {
        use core::slice::from_raw_parts;
        let (locations, indices) = (from_raw_parts(locations, location_count), from_raw_parts(indices, location_count));
        (from_raw_parts(addresses, count), from_raw_parts(sizes, count), locations, indices)
    };
    for (place, (&address, &bytes)) in addresses.iter().zip(sizes).enumerate() {
        let Some((_, &to)) = indices.iter().zip(locations).take_while(|(from, _)| **from <= place).last() else { return INVALID_VALUE };
        let status = prefetch(address, bytes, |address, bytes, host| one(address, bytes, if host { HOST } else { to }));
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

/// Returns true if advice (`CUmem_advise`) may move memory: all but `SET_ACCESSED_BY`, which is for other GPUs.
const fn moves(advice: i32) -> bool {
    advice != SET_ACCESSED_BY
}

/// Gives advice with `call` about memory, without the part of it that must stay on the host.
fn advise_with(address: DevicePtr, bytes: usize, advice: i32, call: impl Fn(DevicePtr, usize) -> Status) -> Status {
    if !is_in_use() || bytes == 0 {
        return call(address, bytes);
    }
    each_part(address, bytes, |at, bytes, spilled| if spilled && moves(advice) { SUCCESS } else { call(at, bytes) })
}

/// `cuMemAdvise`
pub unsafe fn advise(
    real: unsafe extern "C" fn(DevicePtr, usize, i32, Device) -> Status,
    address: DevicePtr,
    bytes: usize,
    advice: i32,
    device: Device,
) -> Status {
    // SAFETY: the program's own arguments, or part of the range.
    advise_with(address, bytes, advice, |address, bytes| unsafe { real(address, bytes, advice, device) })
}

/// `cuMemAdvise_v2`
pub unsafe fn advise_v2(
    real: unsafe extern "C" fn(DevicePtr, usize, i32, Location) -> Status,
    address: DevicePtr,
    bytes: usize,
    advice: i32,
    location: Location,
) -> Status {
    // SAFETY: the program's own arguments, or part of the range.
    advise_with(address, bytes, advice, |address, bytes| unsafe { real(address, bytes, advice, location) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ledger::spilled;
    use crate::memory::objects::address_map::{self, Block, Entered, Kind};
    use vgpu_cuda_abi::cuda::LOCATION_DEVICE;

    /// Without a driver no allocation is found, so only the blocks count.
    #[test]
    fn memory_behind_an_allocation_is_judged_by_its_block() {
        let at = 0x7e00_0000_0000;
        let block = Block { count: 1, granules: 1, context: 0, kind: Kind::Spilled };
        assert_eq!(address_map::enter(at + 512, block), Entered::New);
        let mut parts = [(0, 0, false); 3];
        let mut places = parts.iter_mut();
        let status = each_part(at + 1024, GRANULE as usize, |at, bytes, spilled| {
            *places.next().unwrap() = (at, bytes, spilled);
            SUCCESS
        });
        let first = (at + 1024, GRANULE as usize - 1024, true);
        assert_eq!((status, parts), (SUCCESS, [first, (at + GRANULE, 1024, false), (0, 0, false)]));
        assert_eq!(each_part(at + 1024, 1, |_, _, _| INVALID_VALUE), INVALID_VALUE);
        assert_eq!(address_map::take(at, Kind::Spilled), Some(block));
    }

    #[test]
    fn small_managed_allocations_share_blocks_on_device_and_host() {
        let at = 0x7e00_0100_0000;
        let block = |kind| Block { count: 1, granules: 1, context: 0, kind };
        assert_eq!(address_map::enter(at, block(Kind::Spilled)), Entered::New);
        assert_eq!(address_map::enter(at + 4096, block(Kind::Managed)), Entered::Joined);
        assert!(is_spilled(at + 4096));
        assert_eq!(address_map::enter(at + GRANULE, block(Kind::Shared)), Entered::New);
        assert_eq!(address_map::enter(at + GRANULE, block(Kind::Spilled)), Entered::New, "a stale entry gives way");
    }

    #[test]
    fn each_range_of_a_batch_keeps_its_location() {
        let place = |id| Location { kind: LOCATION_DEVICE, id };
        let (mut addresses, mut sizes) = ([0x7e00_0200_0000, 0x7e00_0300_0000, 0x7e00_0400_0000], [1, 2, 3]);
        let (mut locations, mut indices) = ([place(5), place(6)], [0, 2]);
        let mut batch = Batch {
            addresses: addresses.as_mut_ptr(),
            sizes: sizes.as_mut_ptr(),
            count: 3,
            locations: locations.as_mut_ptr(),
            indices: indices.as_mut_ptr(),
            location_count: 2,
        };
        spilled::IN_USE.store(true, core::sync::atomic::Ordering::Relaxed);
        let seen = std::sync::Mutex::new(Vec::new());
        let one = |address, bytes, to: Location| {
            seen.lock().unwrap().push((address, bytes, to.id));
            SUCCESS
        };
        // SAFETY: the lists are as long as they say.
        assert_eq!(unsafe { prefetch_batch(&batch, || INVALID_VALUE, one) }, SUCCESS);
        assert_eq!(*seen.lock().unwrap(), [(addresses[0], 1, 5), (addresses[1], 2, 5), (addresses[2], 3, 6)]);
        batch.sizes = core::ptr::null_mut();
        // SAFETY: null is for the driver to refuse.
        assert_eq!(unsafe { prefetch_batch(&batch, || 77, |_, _, _| SUCCESS) }, 77);
    }
}
