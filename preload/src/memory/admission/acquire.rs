//! The one way to take device memory: estimate, claim, call, record, settle, check.
//!
//! | step | account | object | if it fails |
//! |---|---|---|---|
//! | claim | the estimate is in flight | none | the call is refused; nothing happened |
//! | call | in flight | the driver's | the claim is dropped |
//! | record | in flight | the driver's and ours | undo, drop, refuse (fail closed) |
//! | settle | what was taken is charged | as before | |
//! | check | as before | as before | past the limit: undo, compare with NVML, refuse |
//!
//! [`acquire`] is for calls whose size is known or bounded before. [`guard`](super::guard) has the two forms for the rest, which NVML
//! measures. [`release`](crate::memory::ledger::changes::release) is the way back.
//!
//! Invariants:
//! * Pages are claimed before the driver is called, so processes that ask at once never get more than the limit together.
//! * A record is removed before the driver frees its object, as the driver may give the same handle or address to another thread at once.
//! * A process killed in between leaves a charge that is too high, never too low. The dead are given back when NVML no longer lists them.
//! * No lock is held over a driver call here. The ways of the next paragraph hold one with a time limit.
//!
//! Four ways of taking memory do not fit and say why where they are: small allocations (`hooks::alloc`), stream-ordered memory near the
//! limit (`hooks::ordered`), launches of graphs with memory on several GPUs (`hooks::graphs`), and memory that lies on the host
//! (`hooks::spill`).

pub use crate::memory::admission::claim::Estimate;
use crate::memory::admission::refusal::refuse;
use crate::memory::ledger::{account, changes};
use crate::memory::reconcile::overhead;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, SUCCESS, Status};

/// What a call has taken, in pages.
#[derive(Clone, Copy, Debug)]
pub enum Taken {
    /// The memory of an object that gives it back when it is freed. At most the estimate.
    Object(u32),
    /// Memory that no allocation call asked for (a context, stacks). It may exceed the estimate, and is undone if that goes past the limit.
    Overhead(u32),
}

/// A call that takes memory.
#[derive(Debug)]
pub struct Operation<Call, Record, Undo> {
    /// What is claimed before the call.
    pub estimate: Estimate,
    /// Calls the driver.
    pub call: Call,
    /// Records the new object and returns what it took; `None` if it cannot be recorded. Runs after a successful call.
    pub record: Record,
    /// Undoes call and record. The program has not seen the object yet.
    pub undo: Undo,
}

/// Takes memory on `gpu` with one call of the driver.
///
/// # Errors
/// Returns the driver's status, or CUDA's out-of-memory code if the container has no room or the object cannot be recorded.
#[inline]
pub fn acquire<Call, Record, Undo>(gpu: &Gpu, operation: Operation<Call, Record, Undo>) -> Status
where
    Call: FnOnce() -> Status,
    Record: FnOnce() -> Option<Taken>,
    Undo: FnOnce(),
{
    let Operation { estimate, call, record, undo } = operation;
    let claim = match estimate.claim(gpu) {
        Ok(claim) => claim,
        Err(status) => return status,
    };
    let status = call();
    if status != SUCCESS {
        claim.drop_all();
        return status;
    }
    match record() {
        Some(Taken::Object(pages)) => {
            claim.settle(pages);
            SUCCESS
        }
        Some(Taken::Overhead(pages)) => {
            changes::together(|| {
                account::add_overhead(gpu, pages);
                claim.settle(pages);
            });
            stay_within_limit(gpu, pages, undo)
        }
        None => {
            undo();
            claim.drop_all();
            OUT_OF_MEMORY
        }
    }
}

/// Undoes a call with `undo` if it took the container past its limit.
///
/// # Errors
/// Returns CUDA's out-of-memory code if it did; `pages` are what the refusal reports.
pub fn stay_within_limit(gpu: &Gpu, pages: u32, undo: impl FnOnce()) -> Status {
    if gpu.account.total.pages() <= gpu.limit_pages() {
        return SUCCESS;
    }
    undo();
    overhead::reconcile(gpu);
    refuse(gpu, pages);
    OUT_OF_MEMORY
}
