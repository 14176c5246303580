//! Brings the overhead of this process in line with NVML.
//!
//! NVML is loaded and asked only where the account alone is not enough: after a context of unknown cost, near the limit, and before a
//! refusal.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::ledger::{PAGE, pages};

use crate::memory::ledger::account::charge_overhead;
use crate::memory::ledger::{account, changes, watermark};
use crate::memory::objects::{context_table, reservoirs, small_arrays};
use crate::memory::reconcile::driver_view::{device_free, own_bytes};
use crate::session::Gpu;

/// Sets this process's overhead to what NVML lists beyond the charges of allocation calls, plus promised memory that is not taken yet.
///
/// Returns `Some(false)`, and changes nothing, if calls of other threads made the figures uncertain at each of three tries. `None` if NVML
/// cannot tell.
pub fn reconcile(gpu: &Gpu) -> Option<bool> {
    (0..3).map(|_| set_overhead(gpu)).find(|&set| set != Some(false)).unwrap_or(Some(false))
}

/// As [`reconcile`], after a call that took an unknown amount; `before` are the bytes that were free on the device before it. While calls
/// of other threads are under way, everything beyond the most that they may be charged counts. Where NVML cannot tell, the decrease of the
/// device's free memory counts, whichever process caused it.
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

/// Returns true if the overhead could be set; `None` if NVML cannot tell.
fn set_overhead(gpu: &Gpu) -> Option<bool> {
    let charge = &gpu.charge.charge;
    let Some(changes) = changes::quiet() else { return Some(false) };
    let is_busy = || charge.in_flight() || gpu.charge.makes_unclaimed_call();
    let (held, was_busy) = (charge.held(), is_busy());
    let overhead = gpu.charge.overhead.load(Acquire);
    // Read first: memory taken in between counts twice rather than not at all.
    let promised = context_table::promises(gpu);
    let bytes = own_bytes(gpu)?;
    // Pools may have shrunk at another thread's wait, which has not settled them yet.
    reservoirs::settle_all_of(gpu);
    if was_busy || is_busy() || charge.held() != held || changes::quiet() != Some(changes) {
        return Some(false);
    }
    let asked_for = held.saturating_sub(overhead).saturating_sub(gpu.charge.managed.load(Relaxed));
    let real = pages(bytes).saturating_sub(asked_for).saturating_add(promised);
    watermark::set_doubtful(gpu, real < context_table::costs(gpu).saturating_add(promised));
    changes::together(|| {
        // Of two threads that saw the same figures, one sets it.
        if gpu.charge.overhead.compare_exchange(overhead, real, AcqRel, Relaxed).is_err() {
            return Some(false);
        }
        account::charge(gpu, real.saturating_sub(overhead));
        account::release(gpu, overhead.saturating_sub(real));
        small_arrays::forget_kept(gpu);
        Some(true)
    })
}

/// Returns the pages that this process holds beyond its charge: the cost of a call that was just made. `None` if other threads took or gave
/// back memory during each of eight tries, which would count as the call's, or if NVML cannot tell.
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

/// Estimated cost of a context in bytes, before one was measured: more than any seen (an H200 took 518 MiB).
pub const CONTEXT_GUESS: u64 = 640 << 20;
const _: () = assert!(CONTEXT_GUESS.is_multiple_of(PAGE));
