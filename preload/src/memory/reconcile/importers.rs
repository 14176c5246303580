//! Memory of the container's other processes beyond their accounts.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use vgpu_region::ledger::pages;
use vgpu_region::map::Census;
use vgpu_region::region::SLOTS;

use crate::memory::ledger::account;
use crate::memory::reconcile::driver_view;
use crate::os::list::List;
use crate::session::{self, Gpu};

/// Charges the container's other processes for the memory that NVML lists beyond their accounts. Imported memory becomes theirs when its
/// maker frees it or dies.
pub fn charge_others(gpu: &Gpu) {
    let Some(session) = session::ready() else { return };
    let census = Census::open(session::region_path());
    // A process that takes or gives back memory while NVML is asked accounts for it itself.
    let mut before = List::<_, SLOTS>::new();
    for (index, slot) in session.others() {
        before.push((index, slot.gpus.get(gpu.place).map(|charge| charge.charge.see())));
    }
    let Some(list) = driver_view::processes(gpu) else { return };
    for &(index, before) in before.as_slice() {
        let Some(slot) = session.membership.region.slots.get(index) else { continue };
        let (Some(charge), Some(bytes)) = (slot.gpus.get(gpu.place), list.bytes_of(slot.pid.load(Relaxed))) else { continue };
        let overhead = charge.overhead.load(Acquire);
        let held = charge.charge.held().saturating_sub(charge.managed.load(Relaxed));
        let more = pages(bytes).saturating_sub(held);
        let still = before == Some(charge.charge.see())
            && !charge.charge.in_flight()
            && !charge.makes_unclaimed_call()
            && slot.making_context.load(Acquire) == 0;
        if more == 0 || !still || census.is_dead(index) {
            continue;
        }
        if charge.charge.begin(&gpu.account.total, more, u64::MAX).is_ok() {
            // Of several processes that see it at once, one charges it.
            let first = charge.overhead.compare_exchange(overhead, overhead + more, AcqRel, Relaxed).is_ok();
            charge.charge.finish(&gpu.account.total, more, if first { more } else { 0 });
            account::hold_back_near_the_limit(gpu);
        }
    }
}
