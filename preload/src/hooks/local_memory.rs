//! Local memory: a kernel whose threads need more of it than the stack limit gives makes the driver take memory for every thread the
//! device can hold, at its first launch, and raise the limit (seen on driver 580: exactly the difference, times the threads).

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

/// What a call may make the driver take for local memory; claimed until the call is over.
#[must_use]
#[derive(Debug)]
pub struct Growth {
    claim: Option<Claim<'static>>,
    /// Local memory of each thread, in bytes.
    bytes: u64,
    /// The function that need not be looked at again, and its place.
    function: Option<(&'static AtomicPtr<core::ffi::c_void>, Handle)>,
}

impl Growth {
    /// The call is over. Whether the driver has what it needs now.
    pub fn end(self) -> bool {
        let there = stack_now() >= self.bytes;
        match self.claim {
            Some(claim) if there => changes::together(|| claim.keep_as_overhead()),
            Some(claim) => claim.drop_all(),
            None => {}
        }
        if let (true, Some((place, function))) = (there, self.function) {
            place.store(function, Relaxed);
        }
        there
    }
}

/// Before a call that may make the driver take local memory for a function's threads. `None` if it has been looked at: nearly always.
///
/// # Errors
/// CUDA's out-of-memory code if that does not fit, or its library does not.
#[inline]
pub fn before(function: Handle) -> Result<Option<Growth>, Status> {
    let place = CHECKED.get((function as usize >> 4).wrapping_mul(0x9e37_79b1) >> 7 & (PLACES - 1));
    match place {
        Some(place) if place.load(Relaxed) == function => Ok(None),
        _ => look_at(function, place),
    }
}

#[cold]
fn look_at(function: Handle, place: Option<&'static AtomicPtr<core::ffi::c_void>>) -> Result<Option<Growth>, Status> {
    let Ok(Current { gpu, .. }) = context_table::current() else { return Ok(None) };
    libraries::before_launch(function)?;
    let growth = before_threads_of(gpu, size_of(function))?;
    Ok(Some(Growth { function: place.map(|place| (place, function)), ..growth }))
}

/// Bytes of local memory that each thread of a function, or of a kernel, needs; 0 for what is neither in the current context.
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

/// The same for threads with so many bytes of local memory, beyond what the driver has for them.
///
/// # Errors
/// CUDA's out-of-memory code if that does not fit.
pub fn before_threads_of(gpu: &'static Gpu, bytes: u64) -> Result<Growth, Status> {
    let more = if bytes == 0 { 0 } else { bytes.saturating_sub(stack_now()) };
    let claim = match pages(more.saturating_mul(context_limits::resident_threads(gpu.device))) {
        _ if more == 0 => None,
        pages => Some(claim(gpu, pages)?),
    };
    Ok(Growth { claim, bytes, function: None })
}

/// The current context's stack limit, in bytes. Where it cannot be told nothing is needed.
fn stack_now() -> u64 {
    let _capture = driver::CaptureRelaxed::enter();
    let mut stack = 0;
    // SAFETY: the driver writes one integer.
    if unsafe { driver::context_limit(&raw mut stack, LIMIT_STACK_SIZE) } == SUCCESS { stack as u64 } else { u64::MAX }
}
