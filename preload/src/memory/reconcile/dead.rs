//! Memory of dead processes.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::map::Census;
use vgpu_region::region::{SLOTS, Slot};

use crate::memory::objects::orphans;
use crate::memory::reconcile::driver_view::Processes;
use crate::memory::reconcile::{driver_view, importers};
use crate::session::{self, Gpu};

/// Gives back the charges of dead processes.
///
/// A process leaves its slot a little before the driver frees its memory, so a charge is given back only once NVML no longer lists the
/// process.
pub fn recover(gpu: &Gpu) {
    let session::State::Ready(session) = session::current() else { return };
    orphans::recheck(gpu);
    let census = Census::open(session::region_path());
    let (own, region) = (session.membership.index, session.membership.region);
    // Under this process's own PID NVML lists this process, and not one that had the PID before.
    let pid = session.membership.slot().pid.load(Relaxed);
    let is_listed = |list: &Processes, slot: &Slot| slot.pid.load(Relaxed) != pid && list.contains(slot.pid.load(Relaxed));
    // NVML is asked after the census, and its answer holds for these processes only: one that died later, perhaps in the same slot, could
    // have made its context after NVML was asked.
    let mut dead = [None; SLOTS];
    for ((index, slot), dead) in region.used_slots().zip(&mut dead).filter(|((index, _), _)| *index != own) {
        let Some(charge) = slot.gpus.get(gpu.place) else { continue };
        let seen = charge.charge.see();
        if seen.most() + charge.spill.most() != 0 && census.is_dead(index) {
            *dead = Some(seen.generation());
        }
    }
    let listed = if dead == [None; SLOTS] { None } else { driver_view::processes(gpu) };
    let recovered = region.recover(gpu.place, |index, slot, seen| {
        dead.get(index) == Some(&Some(seen.generation()))
            && census.is_dead(index)
            && !listed.as_ref().is_some_and(|list| is_listed(list, slot))
    });
    // Memory that the dead had exported lives on in the processes that imported it.
    if recovered && listed.is_some() {
        importers::charge_others(gpu);
    }
}
