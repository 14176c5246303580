//! Local memory: a kernel whose threads need more of it than the stack limit gives makes the driver take memory for every thread the
//! device can hold, at its first launch, and raise the limit (seen on driver 580: exactly the difference, times the threads).

use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use vgpu_region::ledger::pages;

use super::account::{self, claim};
use super::known::{self, Current};
use super::{context, library};
use crate::cuda::{FUNCTION_LOCAL_SIZE, Handle, LIMIT_STACK_SIZE, SUCCESS, Status};
use crate::driver;

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
    let _capture = driver::CaptureRelaxed::enter();
    let (mut local, mut stack) = (0, 0);
    library::before_launch(function)?;
    // SAFETY: the driver writes one integer each, or fails for what is no function of this context. A launch also takes a kernel.
    unsafe {
        if (driver::function_attribute(&raw mut local, FUNCTION_LOCAL_SIZE, function) == SUCCESS
            || driver::kernel_attribute(&raw mut local, FUNCTION_LOCAL_SIZE, function, gpu.device) == SUCCESS)
            && driver::context_limit(&raw mut stack, LIMIT_STACK_SIZE) == SUCCESS
            && local as u64 > stack as u64
        {
            let more = pages((local as u64 - stack as u64).saturating_mul(context::resident_threads(gpu.device)));
            claim(gpu, more)?.keep();
            account::add_overhead(gpu, more);
        }
    }
    if let Some(place) = place {
        place.store(function, Relaxed);
    }
    Ok(())
}

/// Modules, contexts or the stack limit have changed: look again.
pub fn forget() {
    CHECKED.iter().for_each(|place| place.store(core::ptr::null_mut(), Relaxed));
}
