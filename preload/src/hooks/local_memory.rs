//! Local memory. At the first launch of a kernel whose threads need more of it than the stack limit gives, the driver takes memory for
//! every thread that the device can hold, and raises the limit (seen on driver 580: exactly the difference, times the threads).

use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::pages;

use crate::hooks::libraries;
use crate::loader::driver;
use crate::memory::admission::claim::claim;
use crate::memory::ledger::account::Claim;
use crate::memory::ledger::changes;
use crate::memory::objects::checked_functions::{CHECKED, PLACES};
use crate::memory::objects::context_table::Current;
use crate::memory::objects::{context_limits, context_table};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{FUNCTION_LOCAL_SIZE, Handle, LIMIT_STACK_SIZE, SUCCESS, Status};

/// Local memory that the driver may take during a call; claimed until [`Growth::end`].
#[must_use]
#[derive(Debug)]
pub struct Growth {
    /// The claim; `None` if the driver needs no more than it has.
    claim: Option<Claim<'static>>,
    /// Local memory of each thread, in bytes.
    bytes: u64,
    /// The launched function and its place in the table of checked functions.
    function: Option<(&'static AtomicPtr<core::ffi::c_void>, Handle)>,
}

impl Growth {
    /// Settles the claim after the call. Returns whether the driver has the local memory now.
    pub fn end(self) -> bool {
        let has_grown = stack_now() >= self.bytes;
        match self.claim {
            Some(claim) if has_grown => changes::together(|| claim.keep_as_overhead()),
            Some(claim) => claim.drop_all(),
            None => {}
        }
        if let (true, Some((place, function))) = (has_grown, self.function) {
            place.store(function, Relaxed);
        }
        has_grown
    }
}

/// Claims local memory before a function is launched. Returns `None` for a function that was checked before: nearly always.
///
/// # Errors
/// Returns CUDA's out-of-memory code if the local memory or the function's library does not fit.
#[inline]
pub fn before(function: Handle) -> Result<Option<Growth>, Status> {
    let place = CHECKED.get((function as usize >> 4).wrapping_mul(0x9e37_79b1) >> 7 & (PLACES - 1));
    match place {
        Some(place) if place.load(Relaxed) == function => Ok(None),
        _ => check(function, place),
    }
}

/// Claims local memory, and the library of a kernel, before the first launch of a function.
#[cold]
fn check(function: Handle, place: Option<&'static AtomicPtr<core::ffi::c_void>>) -> Result<Option<Growth>, Status> {
    let Ok(Current { gpu, .. }) = context_table::current() else { return Ok(None) };
    libraries::before_launch(function)?;
    let growth = claim_for_threads(gpu, size_of(function))?;
    Ok(Some(Growth { function: place.map(|place| (place, function)), ..growth }))
}

/// Returns the local memory that each thread of a function or kernel needs, in bytes; 0 for a handle that is no function or kernel
/// of the current context.
pub fn size_of(function: Handle) -> u64 {
    let Ok(Current { gpu, .. }) = context_table::current() else { return 0 };
    let _capture = driver::CaptureRelaxed::enter();
    let mut bytes = 0;
    // SAFETY: the driver writes one integer, or fails.
    let known = unsafe {
        driver::function_attribute(&raw mut bytes, FUNCTION_LOCAL_SIZE, function) == SUCCESS
            || driver::kernel_attribute(&raw mut bytes, FUNCTION_LOCAL_SIZE, function, gpu.device) == SUCCESS
    };
    if known { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Claims what threads with `bytes` bytes of local memory need beyond what the driver has for them.
///
/// # Errors
/// Returns CUDA's out-of-memory code if that does not fit.
pub fn claim_for_threads(gpu: &'static Gpu, bytes: u64) -> Result<Growth, Status> {
    let more = if bytes == 0 { 0 } else { bytes.saturating_sub(stack_now()) };
    let claim = match pages(more.saturating_mul(context_limits::resident_threads(gpu.device))) {
        _ if more == 0 => None,
        pages => Some(claim(gpu, pages)?),
    };
    Ok(Growth { claim, bytes, function: None })
}

/// Returns the current context's stack limit, in bytes; the largest number if the driver does not tell, so nothing is claimed.
fn stack_now() -> u64 {
    let _capture = driver::CaptureRelaxed::enter();
    let mut stack = 0;
    // SAFETY: the driver writes one integer.
    if unsafe { driver::context_limit(&raw mut stack, LIMIT_STACK_SIZE) } == SUCCESS { stack as u64 } else { u64::MAX }
}
