//! `cuMemAlloc`, its kin, and `cuMemFree`.

use core::sync::atomic::Ordering::AcqRel;

use crate::hooks::spill;
use crate::loader::driver;
use crate::memory::admission::claim::claim_here;
use crate::memory::admission::{near_limit, small};
use crate::memory::granules::{GRANULE, SMALL, rounded_pages};
use crate::memory::ledger::optimistic::Unclaimed;
use crate::memory::ledger::{optimistic, spilled, watermark};
use crate::memory::objects::address_map::{Block, Entered, Kind};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::linear::{Given, PITCH, free_with, note};
use crate::memory::objects::{address_map, context_table, slots};
use vgpu_cuda_abi::cuda::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};

fn given(status: Status, result: impl FnOnce() -> (DevicePtr, u64)) -> Given {
    if status == SUCCESS { Ok(result()) } else { Err(status) }
}

/// Allocates with `call`, after at most `bytes` were found to fit.
fn allocate_with(current: Current, kind: Kind, bytes: u64, mut call: impl FnMut() -> Given) -> Status {
    let Current { gpu, id, known } = current;
    let shared = kind == Kind::Shared;
    if shared && let Some(unclaimed) = optimistic::begin(gpu, || known.is_some_and(|known| known.take_room(bytes))) {
        return match call() {
            Ok((address, _)) => small::lies_at(current, address, bytes, unclaimed),
            Err(status) => status,
        };
    }
    let most = rounded_pages(bytes, GRANULE);
    let taken = match if shared { near_limit::try_claim(gpu, most).ok_or(OUT_OF_MEMORY) } else { claim_here(gpu, most) } {
        Ok(claim) => claim,
        Err(status) if !shared => return status,
        // A small allocation may yet fit between others, where it costs nothing.
        Err(_) => {
            if let Some(status) = small::fill_hole(current, bytes, &mut call) {
                return status;
            }
            match claim_here(gpu, most) {
                Ok(claim) => claim,
                Err(status) => return status,
            }
        }
    };
    let _alone = (shared && watermark::is_near(gpu)).then(slots::alone);
    let (address, bytes) = match call() {
        Ok(given) => given,
        Err(status) => {
            taken.drop_all();
            return status;
        }
    };
    let block = Block { count: 1, granules: bytes.div_ceil(GRANULE) as u32, context: id, kind };
    let entered = note(address, block);
    let cost = if entered == Entered::Joined { 0 } else { rounded_pages(bytes, GRANULE) };
    if kind == Kind::Managed {
        gpu.charge.managed.fetch_add(cost, AcqRel);
    }
    if let (true, Some(known)) = (shared, known) {
        known.placed(address, bytes, entered);
        if entered == Entered::Joined {
            known.forget_hole();
        }
    }
    taken.settle(cost);
    SUCCESS
}

/// `cuMemAlloc_v2`
#[inline]
pub unsafe fn allocate(real: unsafe extern "C" fn(*mut DevicePtr, usize) -> Status, address: *mut DevicePtr, bytes: usize) -> Status {
    // The common case in as few steps as can be: a small allocation behind the one before, in the only context. Which one is current need
    // not be asked: contexts share no blocks (seen on driver 580), so where the allocation lies tells whose it is.
    if !address.is_null()
        && (1..=SMALL as usize).contains(&bytes)
        && let Some(Current { gpu, id, known: Some(known) }) = context_table::sole()
        && let Some(unclaimed) = optimistic::begin(gpu, || known.take_room(bytes as u64))
    {
        // SAFETY: the program's own arguments; the address has been checked.
        unsafe {
            return match real(address, bytes) {
                SUCCESS if address_map::join(*address, id) => {
                    known.placed(*address, bytes as u64, Entered::Joined);
                    SUCCESS
                }
                SUCCESS => elsewhere(address, bytes as u64, unclaimed),
                status => {
                    drop(unclaimed);
                    answer(address, bytes as u64, status)
                }
            };
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { allocate_any(real, address, bytes) }
}

/// A small allocation is not in a block of the only context: it is in a new one, or in a context that nobody had met.
#[cold]
unsafe fn elsewhere(address: *mut DevicePtr, bytes: u64, unclaimed: Unclaimed<'_>) -> Status {
    // SAFETY: the caller has checked the address, and the driver has just written it.
    unsafe {
        match context_table::current() {
            Ok(current) => answer(address, bytes, small::lies_at(current, *address, bytes, unclaimed)),
            Err(None) => SUCCESS,
            Err(Some(status)) => {
                driver::free(*address);
                status
            }
        }
    }
}

#[inline(never)]
unsafe fn allocate_any(real: unsafe extern "C" fn(*mut DevicePtr, usize) -> Status, address: *mut DevicePtr, bytes: usize) -> Status {
    // SAFETY: the program's own arguments; called only once the address has been checked.
    let call = || unsafe { given(real(address, bytes), || (*address, bytes as u64)) };
    let current = match context_table::current() {
        Ok(current) if !address.is_null() && bytes != 0 => current,
        // SAFETY: the program's own arguments, for the driver to refuse.
        Ok(_) | Err(None) => return unsafe { real(address, bytes) },
        Err(Some(status)) => return status,
    };
    // SAFETY: the address has been checked.
    unsafe { answer(address, bytes as u64, allocate_with(current, kind_of(bytes as u64), bytes as u64, call)) }
}

/// What was not had on the device.
#[inline]
unsafe fn answer(address: *mut DevicePtr, bytes: u64, status: Status) -> Status {
    // SAFETY: the program's own variable, which the caller has checked.
    if status == SUCCESS { SUCCESS } else { unsafe { spill::instead(address, bytes, status) } }
}

const fn kind_of(bytes: u64) -> Kind {
    if bytes <= SMALL { Kind::Shared } else { Kind::Large }
}

/// `cuMemAlloc`, with 32-bit addresses and sizes.
pub unsafe fn allocate_v1(real: unsafe extern "C" fn(*mut u32, u32) -> Status, address: *mut u32, bytes: u32) -> Status {
    let current = match context_table::current() {
        Ok(current) if !address.is_null() && bytes != 0 => current,
        // SAFETY: the program's own arguments, for the driver to refuse.
        Ok(_) | Err(None) => return unsafe { real(address, bytes) },
        Err(Some(status)) => return status,
    };
    // SAFETY: the program's own arguments; the address has been checked.
    let call = || unsafe { given(real(address, bytes), || (u64::from(*address), u64::from(bytes))) };
    let status = allocate_with(current, kind_of(u64::from(bytes)), u64::from(bytes), call);
    spill::not_here(current.gpu, u64::from(bytes), status)
}

/// `cuMemAllocPitch_v2`
pub unsafe fn allocate_pitch(
    real: unsafe extern "C" fn(*mut DevicePtr, *mut usize, usize, usize, u32) -> Status,
    address: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Status {
    let current = match context_table::current() {
        Ok(current) if !address.is_null() && !pitch.is_null() && width != 0 && height != 0 => current,
        // SAFETY: the program's own arguments, for the driver to refuse.
        Ok(_) | Err(None) => return unsafe { real(address, pitch, width, height, element) },
        Err(Some(status)) => return status,
    };
    let bytes = (width as u64).div_ceil(PITCH).saturating_mul(PITCH).saturating_mul(height as u64);
    // SAFETY: the program's own arguments; both pointers have been checked.
    let call = || unsafe { given(real(address, pitch, width, height, element), || (*address, *pitch as u64 * height as u64)) };
    match allocate_with(current, kind_of(bytes), bytes, call) {
        SUCCESS => SUCCESS,
        // SAFETY: both pointers have been checked.
        status => unsafe { spill::instead_with(address, bytes, status, || spill::make_pitched(address, pitch, (width, height), element)) },
    }
}

/// `cuMemAllocPitch`, with 32-bit addresses and sizes.
pub unsafe fn allocate_pitch_v1(
    real: unsafe extern "C" fn(*mut u32, *mut u32, u32, u32, u32) -> Status,
    address: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> Status {
    let current = match context_table::current() {
        Ok(current) if !address.is_null() && !pitch.is_null() => current,
        // SAFETY: the program's own arguments, for the driver to refuse.
        Ok(_) | Err(None) => return unsafe { real(address, pitch, width, height, element) },
        Err(Some(status)) => return status,
    };
    let bytes = u64::from(width).div_ceil(PITCH) * PITCH * u64::from(height);
    // SAFETY: the program's own arguments; both pointers have been checked.
    let call =
        || unsafe { given(real(address, pitch, width, height, element), || (u64::from(*address), u64::from(*pitch) * u64::from(height))) };
    spill::not_here(current.gpu, bytes, allocate_with(current, kind_of(bytes), bytes, call))
}

/// `cuMemAllocManaged`
///
/// Managed memory may move to the host, but while it is used it is on the device, and NVML does not list it by process: it is charged
/// whole, when it is made.
pub unsafe fn allocate_managed(
    real: unsafe extern "C" fn(*mut DevicePtr, usize, u32) -> Status,
    address: *mut DevicePtr,
    bytes: usize,
    flags: u32,
) -> Status {
    let current = match context_table::current() {
        Ok(current) if !address.is_null() && bytes != 0 => current,
        // SAFETY: the program's own arguments, for the driver to refuse.
        Ok(_) | Err(None) => return unsafe { real(address, bytes, flags) },
        Err(Some(status)) => return status,
    };
    // SAFETY: the program's own arguments; the address has been checked.
    let make = || unsafe { real(address, bytes, flags) };
    // SAFETY: the address has been checked.
    let call = || given(make(), || (unsafe { *address }, bytes as u64));
    let status = allocate_with(current, Kind::Managed, bytes as u64, call);
    if status != SUCCESS {
        // SAFETY: the address has been checked.
        return unsafe { spill::instead_with(address, bytes as u64, status, make) };
    }
    // SAFETY: the driver has just written the address.
    let given = unsafe { *address };
    if spilled::is_in_use() && !spill::keep(current.gpu, given, bytes as u64) {
        // SAFETY: the allocation was just made, and the program is about to hear that it was not.
        free_with(given, || unsafe { driver::free(given) });
        return OUT_OF_MEMORY;
    }
    SUCCESS
}
