//! What NVML says this container's processes hold, and the account brought in line with it.
//!
//! NVML is loaded and asked only where the account alone will not do: after a context whose cost nobody knows, near the limit, and
//! before anything is refused.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::ledger::{PAGE, pages};

use crate::memory::ledger::account::charge_overhead;
use crate::memory::ledger::{account, changes, watermark};
use crate::memory::objects::{context_table, reservoirs, small_arrays};
use crate::memory::reconcile::driver_view::{device_free, own_bytes};
use crate::session::Gpu;

/// Sets this process's overhead to what NVML says beyond what allocation calls asked for, and what is promised and not taken yet.
///
/// Another thread's call that is under way makes both figures uncertain; then nothing is changed, after a few tries, and this is
/// `Some(false)`. `None` if NVML cannot tell.
pub fn reconcile(gpu: &Gpu) -> Option<bool> {
    (0..3).map(|_| set_overhead(gpu)).find(|&set| set != Some(false)).unwrap_or(Some(false))
}

/// The same after a call that took nobody knows how much: `before` it the device had so much free. While other threads' calls are under
/// way, what the process holds beyond all that they may have been charged for counts. Where NVML cannot tell, what the device has less of
/// now counts, whoever took it.
pub fn reconcile_after(gpu: &Gpu, before: usize) {
    for _ in 0..16 {
        match set_overhead(gpu) {
            Some(true) => return,
            // SAFETY: the call takes nothing.
            Some(false) => _ = unsafe { libc::sched_yield() },
            None => return charge_overhead(gpu, pages(before.saturating_sub(device_free()) as u64)),
        }
    }
    let managed = u64::from(gpu.charge.managed.load(Relaxed));
    let most = gpu.charge.charge.most();
    if let Some(bytes) = own_bytes(gpu) {
        let accounted = most.max(gpu.charge.charge.most()).saturating_sub(managed);
        charge_overhead(gpu, pages(bytes).saturating_sub(u32::try_from(accounted).unwrap_or(u32::MAX)));
    }
}

/// Whether the overhead could be set; `None` if NVML cannot tell.
fn set_overhead(gpu: &Gpu) -> Option<bool> {
    let charge = &gpu.charge.charge;
    let Some(changes) = changes::quiet() else { return Some(false) };
    let is_busy = || charge.in_flight() || gpu.charge.makes_unclaimed_call();
    let (held, was_busy) = (charge.held(), is_busy());
    let overhead = gpu.charge.overhead.load(Acquire);
    // Asked first: what is taken in between counts twice rather than not at all.
    let promised = context_table::promises(gpu);
    let bytes = own_bytes(gpu)?;
    // Pools may have shrunk at another thread's wait, which has not told the account yet.
    reservoirs::settle_all_of(gpu);
    if was_busy || is_busy() || charge.held() != held || changes::quiet() != Some(changes) {
        return Some(false);
    }
    let asked_for = held.saturating_sub(overhead).saturating_sub(gpu.charge.managed.load(Relaxed));
    let real = pages(bytes).saturating_sub(asked_for).saturating_add(promised);
    watermark::set_doubtful(gpu, real < context_table::costs(gpu).saturating_add(promised));
    changes::together(|| {
        // Of two threads that saw the same, one changes it.
        if gpu.charge.overhead.compare_exchange(overhead, real, AcqRel, Relaxed).is_err() {
            return Some(false);
        }
        account::charge(gpu, real.saturating_sub(overhead));
        account::release(gpu, overhead.saturating_sub(real));
        small_arrays::told(gpu);
        Some(true)
    })
}

/// What this process holds beyond what it has been charged for, in pages: what a call just made has cost. `None` if other threads
/// took or gave back memory meanwhile, again and again: what they did would count as the call's.
pub fn uncharged(gpu: &Gpu) -> Option<u32> {
    let charge = &gpu.charge.charge;
    for _ in 0..8 {
        let (before, most) = (charge.held(), charge.most());
        let bytes = own_bytes(gpu)?;
        if (charge.held(), charge.most()) == (before, most) {
            return Some(pages(bytes).saturating_sub(before.saturating_sub(gpu.charge.managed.load(Relaxed))));
        }
    }
    None
}

/// A context costs this much where nobody has measured one yet: more than any seen (an H200 took 518 MiB).
pub const CONTEXT_GUESS: u64 = 640 << 20;
const _: () = assert!(CONTEXT_GUESS.is_multiple_of(PAGE));
