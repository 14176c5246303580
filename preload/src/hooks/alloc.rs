//! `cuMemAlloc`, `cuMemAllocPitch` and `cuMemAllocManaged`.
//!
//! Allocations of a granule or more go the way of all calls ([`acquire`]). Smaller ones do not: the driver packs them into granules, so
//! most take nothing, and a claim for each would cost more than the call. Where the context's last granule seems to have room, the call is
//! made without a claim (an optimistic allocation, see [`optimistic`]) and charged only if the driver took a new granule.

use core::sync::atomic::Ordering::AcqRel;

use crate::hooks::{movable, spill};
use crate::loader::driver;
use crate::memory::admission::acquire::{Estimate, Operation, Taken, acquire};
use crate::memory::admission::target::with_current;
use crate::memory::admission::{near_limit, small};
use crate::memory::granules::{GRANULE, GRANULE_PAGES, SMALL, rounded_pages};
use crate::memory::ledger::optimistic::Optimistic;
use crate::memory::ledger::{optimistic, spilled, watermark};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::linear::{self, PITCH, free_with};
use crate::memory::objects::{address_map, context_table, slots};
use vgpu_cuda_abi::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

/// Allocates at most `bytes` with `call`; afterwards `given` returns the address and the size in bytes.
#[inline]
fn allocate_linear(current: Current, bytes: u64, call: impl Fn() -> Status, given: impl Fn() -> (DevicePtr, u64)) -> Status {
    if bytes <= SMALL { allocate_small(current, bytes, call, given) } else { allocate_large(current, Kind::Large, bytes, call, given) }
}

/// Allocates more than [`SMALL`] bytes, which get granules of their own.
fn allocate_large(
    Current { gpu, id, .. }: Current,
    kind: Kind,
    bytes: u64,
    call: impl Fn() -> Status,
    given: impl Fn() -> (DevicePtr, u64),
) -> Status {
    let record = || {
        let (address, bytes) = given();
        let entered = linear::record(address, Block { count: 1, granules: bytes.div_ceil(GRANULE) as u32, context: id, kind });
        let cost = if entered == Entered::Joined { 0 } else { rounded_pages(bytes, GRANULE) };
        if kind == Kind::Managed {
            gpu.charge.managed.fetch_add(cost, AcqRel);
        }
        Some(Taken::Object(cost))
    };
    acquire(gpu, Operation { estimate: Estimate::AtMostHere(rounded_pages(bytes, GRANULE)), call, record, undo: || () })
}

/// Allocates at most [`SMALL`] bytes, which share a granule with others.
fn allocate_small(current: Current, bytes: u64, call: impl Fn() -> Status, given: impl Fn() -> (DevicePtr, u64)) -> Status {
    let Current { gpu, id, context } = current;
    if let Some(optimistic) = optimistic::begin(gpu, || context.is_some_and(|context| context.take_room(bytes))) {
        return match call() {
            SUCCESS => small::settle(current, given().0, bytes, optimistic),
            status => status,
        };
    }
    let claim = match near_limit::try_claim(gpu, GRANULE_PAGES) {
        Some(claim) => claim,
        // It may still fit between others, where it costs nothing; then `Err` is the call's status.
        None => match small::fill_hole(current, bytes, &call, &given).map_or_else(|| Estimate::AtMostHere(GRANULE_PAGES).claim(gpu), Err) {
            Ok(claim) => claim,
            Err(status) => return status,
        },
    };
    let _alone = watermark::is_near(gpu).then(slots::alone);
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        return status;
    }
    let (address, bytes) = given();
    let granules = bytes.div_ceil(GRANULE) as u32;
    let entered = linear::record(address, Block { count: 1, granules, context: id, kind: Kind::Shared });
    if let Some(context) = context {
        context.placed(address, bytes, entered);
        if entered == Entered::Joined {
            context.forget_hole();
        }
    }
    claim.settle(if entered == Entered::Joined { 0 } else { rounded_pages(bytes, GRANULE) });
    SUCCESS
}

/// `cuMemAlloc_v2`
#[inline]
pub unsafe fn allocate(call: impl Fn() -> Status, address: *mut DevicePtr, bytes: usize) -> Status {
    // The fast path: a small allocation behind the one before, in the only context. Which context is current need not be asked: contexts
    // share no granules (seen on driver 580), so the address tells.
    if !address.is_null()
        && (1..=SMALL as usize).contains(&bytes)
        && let Some(Current { gpu, id, context: Some(context) }) = context_table::sole()
        && let Some(optimistic) = optimistic::begin(gpu, || context.take_room(bytes as u64))
    {
        // SAFETY: the address has been checked, and is read only after the driver has written it.
        unsafe {
            return match call() {
                SUCCESS if address_map::join(*address, id) => {
                    context.placed(*address, bytes as u64, Entered::Joined);
                    SUCCESS
                }
                SUCCESS => placed_elsewhere(address, bytes as u64, optimistic),
                status => {
                    drop(optimistic);
                    spill::refused(address, status)
                }
            };
        }
    }
    // SAFETY: as the caller promises.
    unsafe { allocate_any(call, address, bytes) }
}

/// Settles a small allocation that is not in a known granule of the only context: it is in a new granule, or in a context not met before.
#[cold]
unsafe fn placed_elsewhere(address: *mut DevicePtr, bytes: u64, optimistic: Optimistic<'_>) -> Status {
    // SAFETY: the caller has checked the address, and the driver has just written it.
    unsafe {
        match context_table::current() {
            Ok(current) => spill::refused(address, small::settle(current, *address, bytes, optimistic)),
            Err(None) => SUCCESS,
            Err(Some(status)) => {
                driver::free(*address);
                status
            }
        }
    }
}

/// Allocates `bytes` with `call`, which writes the address to `address`.
///
/// # Safety
/// `address` is null or valid for the driver to write.
#[inline(never)]
unsafe fn allocate_any(call: impl Fn() -> Status, address: *mut DevicePtr, bytes: usize) -> Status {
    if address.is_null() || bytes == 0 {
        return call();
    }
    with_current(call, |current, call| {
        // SAFETY: the address has been checked, and is read only after the driver has written it.
        let given = || (unsafe { *address }, bytes as u64);
        let status = match movable::is_for(&current, bytes as u64) {
            // SAFETY: as above.
            true => allocate_linear(current, bytes as u64, || unsafe { movable::make(current, address, bytes) }, given),
            false => allocate_linear(current, bytes as u64, call, given),
        };
        match status {
            SUCCESS => SUCCESS,
            // SAFETY: as above.
            status => unsafe { spill::instead(current, address, bytes as u64, status, || spill::make(address, bytes)) },
        }
    })
}

/// `cuMemAllocPitch`, with 32-bit addresses and sizes.
pub unsafe fn allocate_pitch_v1(call: impl Fn() -> Status, address: *mut u32, pitch: *mut u32, width: u32, height: u32) -> Status {
    if pitch.is_null() {
        return call();
    }
    // SAFETY: as the caller promises; the pitch has been checked.
    unsafe { allocate_v1(call, address, pitched(width.into(), height.into()), || u64::from(*pitch) * u64::from(height)) }
}

/// `cuMemAlloc`, with 32-bit addresses and sizes. Such an allocation cannot lie on the host. Afterwards `taken` returns the size in bytes.
pub unsafe fn allocate_v1(call: impl Fn() -> Status, address: *mut u32, bytes: u64, taken: impl Fn() -> u64) -> Status {
    if address.is_null() || bytes == 0 {
        return call();
    }
    with_current(call, |current, call| {
        // SAFETY: the address has been checked, and is read only after the driver has written it.
        let status = allocate_linear(current, bytes, call, || (unsafe { *address }.into(), taken()));
        spill::refuse_host(current.gpu, bytes, status)
    })
}

/// Returns the most bytes that rows of this width take, with the driver's widest pitch.
const fn pitched(width: u64, height: u64) -> u64 {
    width.div_ceil(PITCH).saturating_mul(PITCH).saturating_mul(height)
}

/// `cuMemAllocPitch_v2`
pub unsafe fn allocate_pitch(
    call: impl Fn() -> Status,
    address: *mut DevicePtr,
    pitch: *mut usize,
    (width, height): (usize, usize),
    element: u32,
) -> Status {
    if address.is_null() || pitch.is_null() || width == 0 || height == 0 {
        return call();
    }
    with_current(call, |current, call| {
        let bytes = pitched(width as u64, height as u64);
        // SAFETY: both pointers have been checked, and are read only after the driver has written them.
        let given = || unsafe { (*address, *pitch as u64 * height as u64) };
        let status = match movable::is_for(&current, bytes) {
            true => {
                // SAFETY: as above.
                let make =
                    || unsafe { spill::make_pitched(pitch, (width, height), element, |bytes| movable::make(current, address, bytes)) };
                allocate_linear(current, bytes, make, given)
            }
            false => allocate_linear(current, bytes, call, given),
        };
        match status {
            SUCCESS => SUCCESS,
            // SAFETY: as above.
            status => unsafe {
                spill::instead(current, address, bytes, status, || {
                    spill::make_pitched(pitch, (width, height), element, |bytes| spill::make(address, bytes))
                })
            },
        }
    })
}

/// `cuMemAllocManaged`
///
/// Managed memory may move to the host, but is on the device while it is used, and NVML does not list it by process. It is charged whole
/// when it is made.
pub unsafe fn allocate_managed(call: impl Fn() -> Status, address: *mut DevicePtr, bytes: usize) -> Status {
    if address.is_null() || bytes == 0 {
        return call();
    }
    with_current(call, |current, call| {
        let bytes = bytes as u64;
        // SAFETY: the address has been checked, and is read only after the driver has written it.
        let given = || unsafe { *address };
        match allocate_large(current, Kind::Managed, bytes, &call, || (given(), bytes)) {
            SUCCESS if spilled::is_in_use() && !spill::stay_on_host(current.gpu, given(), bytes) => {
                // SAFETY: the allocation was just made, and the program has not seen it.
                free_with(given(), || unsafe { driver::free(given()) });
                OUT_OF_MEMORY
            }
            SUCCESS => SUCCESS,
            // SAFETY: as above.
            status => unsafe { spill::instead(current, address, bytes, status, call) },
        }
    })
}
