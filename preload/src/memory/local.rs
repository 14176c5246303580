//! Local memory: a kernel whose threads need more of it than the stack limit gives makes the driver take memory for every thread the
//! device can hold, at its first launch, and raise the limit (seen on driver 580: exactly the difference, times the threads).

use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use vgpu_region::ledger::pages;

use super::account::{self, claim};
use super::known::{self, Current};
use super::{context, library};
use crate::cuda::{FUNCTION_LOCAL_SIZE, Handle, LIMIT_STACK_SIZE, SUCCESS, Status};
use crate::driver;
use crate::session::Gpu;

const PLACES: usize = 512;
/// Functions that were looked at; each has one place.
static CHECKED: [AtomicPtr<core::ffi::c_void>; PLACES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; PLACES];

/// Before a launch: takes what the function's local memory will make the driver take.
///
/// # Errors
/// CUDA's out-of-memory code if that does not fit.
#[inline]
pub fn fits(function: Handle) -> Result<(), Status> {
    let place = CHECKED.get((function as usize >> 4).wrapping_mul(0x9e37_79b1) >> 7 & (PLACES - 1));
    match place {
        Some(place) if place.load(Relaxed) == function => Ok(()),
        _ => look_at(function, place),
    }
}

#[cold]
fn look_at(function: Handle, place: Option<&AtomicPtr<core::ffi::c_void>>) -> Result<(), Status> {
    let Ok(Current { gpu, .. }) = known::current() else { return Ok(()) };
    library::before_launch(function)?;
    reserve(gpu, size_of(function))?;
    if let Some(place) = place {
        place.store(function, Relaxed);
    }
    Ok(())
}

/// Bytes of local memory that each thread of a function, or of a kernel, needs; 0 for what is neither in the current context.
pub fn size_of(function: Handle) -> u64 {
    let Ok(Current { gpu, .. }) = known::current() else { return 0 };
    let _capture = driver::CaptureRelaxed::enter();
    let mut bytes = 0;
    // SAFETY: the driver writes one integer, or fails.
    let known = unsafe {
        driver::function_attribute(&raw mut bytes, FUNCTION_LOCAL_SIZE, function) == SUCCESS
            || driver::kernel_attribute(&raw mut bytes, FUNCTION_LOCAL_SIZE, function, gpu.device) == SUCCESS
    };
    if known { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Takes what threads with so many bytes of local memory will make the driver take at their launch, beyond what it has.
///
/// # Errors
/// CUDA's out-of-memory code if that does not fit.
pub fn reserve(gpu: &Gpu, bytes: u64) -> Result<(), Status> {
    let _capture = driver::CaptureRelaxed::enter();
    let mut stack = 0;
    // SAFETY: the driver writes one integer.
    let known = bytes != 0 && unsafe { driver::context_limit(&raw mut stack, LIMIT_STACK_SIZE) } == SUCCESS;
    if known && bytes > stack as u64 {
        let more = pages((bytes - stack as u64).saturating_mul(context::resident_threads(gpu.device)));
        claim(gpu, more)?.keep();
        account::add_overhead(gpu, more);
    }
    Ok(())
}

/// Modules, contexts or the stack limit have changed: look again.
pub fn forget() {
    CHECKED.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
}
