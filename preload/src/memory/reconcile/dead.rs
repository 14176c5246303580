//! What dead processes held.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::map::Census;
use vgpu_region::region::SLOTS;

use crate::memory::objects::orphans;
use crate::memory::reconcile::{driver_view, importers};
use crate::session;
use crate::session::Gpu;

/// Gives back what dead processes held.
///
/// A process lets go of its slot a little before the driver lets go of its memory, so the dead are given back only once NVML does
/// not list them any more.
pub fn recover(gpu: &Gpu) {
    let session::State::Ready(session) = session::current() else { return };
    orphans::recheck(gpu);
    let census = Census::open(session::region_path());
    let (own, region) = (session.membership.index, session.membership.region);
    // NVML is asked when it is known who is dead, and what it says goes for these alone: who died later, maybe at the same place, could
    // have made its context after it was asked.
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
            && !listed.as_ref().is_some_and(|list| list.contains(slot.pid.load(Relaxed)))
    });
    // What the dead had shared lives on in those who imported it.
    if recovered && listed.is_some() {
        importers::charge_others(gpu);
    }
}
