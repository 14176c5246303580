//! The process's contexts: work that the library does in one of them, or in all.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::objects::{captures, context_table};
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{NOT_FOUND, SUCCESS, Status};

/// Set once a context was made for which the table had no place, or memory was lost.
static MUST_STAY: AtomicBool = AtomicBool::new(false);

/// Records that the process's memory must not move any more: a context is not in the table, so its work cannot be waited for, or memory was
/// lost.
pub fn stay_for_good() {
    MUST_STAY.store(true, Relaxed);
}

/// Returns true if the process's memory must not move.
pub fn must_stay() -> bool {
    MUST_STAY.load(Relaxed)
}

/// Runs `work` with a context current, by its place in the table.
///
/// # Errors
/// The context is gone, or the driver does not make it current: its status. Then `work` did not run.
pub fn in_context<T>(id: u8, work: impl FnOnce() -> T) -> Result<T, Status> {
    let context = context_table::handle_of(id).ok_or(NOT_FOUND)?;
    // SAFETY: a living context: while contexts are used here none is ended (`gate::keep_still`), or the program promises it for a call of
    // its own.
    unsafe { driver::in_context(context, work) }
}

/// Returns one of the process's contexts, by its place in the table.
pub fn any() -> Option<u8> {
    let ids = (0..=u8::MAX).take_while(|&id| context_table::record(id).is_some());
    ids.into_iter().find(|&id| context_table::handle_of(id).is_some())
}

/// Returns the free memory of a GPU in bytes, of which the driver needs a context to tell; without one, more than any has.
pub fn free_on(gpu: &Gpu) -> u64 {
    let (mut free, mut total) = (usize::MAX, 0);
    // SAFETY: the driver writes two integers, or none if it fails.
    let ask = || unsafe { driver::memory_info(&raw mut free, &raw mut total) };
    _ = context_table::any_on(gpu).map(|id| in_context(id, ask));
    free as u64
}

/// Waits for the work in all of the process's contexts: any of them may use the memory of any other. Returns false if one cannot be waited
/// for, or a capture may be going on, which a wait would invalidate.
pub fn wait_for_all() -> bool {
    let ids = (0..=u8::MAX).take_while(|&id| context_table::record(id).is_some());
    let mut living = ids.filter(|&id| context_table::handle_of(id).is_some());
    !must_stay() && living.all(|id| in_context(id, captures::wait_for_context) == Ok(Some(SUCCESS)))
}

/// Waits for the work in the current context, during captures too.
pub fn synchronize() -> Status {
    // SAFETY: the call takes nothing.
    unsafe { driver::context_synchronize() }
}
