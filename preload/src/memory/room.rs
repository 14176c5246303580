//! The account says no. Before the program hears it: what the dead held is given back, what pools and graphs do not use is let go of,
//! calls under way are waited for, and NVML is asked for the truth.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use vgpu_region::map::Census;
use vgpu_region::region::{GpuCharge, SLOTS};

use super::account::{Claim, try_claim};
use super::{kept, near, pools, shared, truth};
use crate::session::{self, Gpu, nap};

/// In nanoseconds: for so long, and as long again for each that is being made, no context need be finished for which others wait. One alone
/// takes a fifth of a second (H200); those of many processes may grow side by side, and all be finished late.
const PATIENCE: u64 = 2_000_000_000;

/// Room for `pages`, which are for a `context` of this thread's or for something else.
#[cold]
pub fn find(gpu: &Gpu, pages: u32, context: bool) -> Option<Claim<'_>> {
    // The first context that was measured tells what this one costs.
    let wanted = || if context { gpu.context_pages().unwrap_or(pages) } else { pages };
    let mut makers = ((0, 0), session::monotonic());
    loop {
        recover(gpu);
        pools::settle_all_of(gpu);
        if let Some(claim) = try_claim(gpu, wanted()) {
            return Some(claim);
        }
        let (now, guessing) = (session::monotonic(), guesses(gpu, context));
        if guessing != makers.0 {
            makers = (guessing, now);
        }
        let (count, _) = guessing;
        if count == 0 || now.saturating_sub(makers.1) > PATIENCE * (count + 1) {
            break;
        }
        nap(5_000_000);
    }
    pools::trim_idle(gpu);
    let mut certain = false;
    // What calls under way have claimed may be more than they take, and what they take is not certain before they end.
    for microseconds in [0, 100, 200, 400, 800, 1600] {
        nap(microseconds * 1_000);
        let taking = someone_is_taking(gpu);
        // NVML takes milliseconds where many processes are: once it was certain, it is asked again only if the account has room.
        if (!certain || gpu.left() >= u64::from(wanted()))
            && let Some(claim) = near::begin_certain(gpu, wanted(), |now| {
                certain = now;
                recover(gpu);
            })
        {
            return Some(claim);
        }
        // Who was at it when the account was asked may have been what was in the way.
        if !taking && !someone_is_taking(gpu) {
            break;
        }
    }
    None
}

/// Whether a call of some process is under way that may give back a part of what it has claimed.
fn someone_is_taking(gpu: &Gpu) -> bool {
    let Some(session) = session::ready() else { return false };
    let takes = |charge: &GpuCharge| charge.charge.in_flight() || charge.makes_unclaimed_call();
    session.membership.region.used_slots().any(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(takes))
}

/// Gives back what dead processes held.
///
/// A process lets go of its slot a little before the driver lets go of its memory, so the dead are given back only once NVML does
/// not list them any more.
pub fn recover(gpu: &Gpu) {
    let session::State::Ready(session) = session::current() else { return };
    kept::recheck(gpu);
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
    let listed = if dead == [None; SLOTS] { None } else { truth::processes(gpu) };
    let recovered = region.recover(gpu.place, |index, slot, seen| {
        dead.get(index) == Some(&Some(seen.generation()))
            && census.is_dead(index)
            && !listed.as_ref().is_some_and(|list| list.contains(slot.pid.load(Relaxed)))
    });
    // What the dead had shared lives on in those who imported it.
    if recovered && listed.is_some() {
        shared::charge_others(gpu);
    }
}

/// How many living processes are making a context whose cost nobody knows yet, and which, as one figure: others than this one, if it is
/// for a `context` of this thread's.
fn guesses(gpu: &Gpu, context: bool) -> (u64, u64) {
    let Some(session) = session::ready() else { return (0, 0) };
    let census = Census::open(session::region_path());
    let own = session.membership.index;
    let makers = session.membership.region.used_slots().filter(|(_, slot)| slot.making_context.load(Acquire) != 0);
    let guessing = makers.filter(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(|charge| charge.charge.in_flight()));
    let alive = guessing.filter(|&(index, _)| if index == own { !context } else { !census.is_dead(index) });
    alive.fold((0, 0_u64), |(count, which), (index, _)| (count + 1, which.wrapping_mul(31).wrapping_add(index as u64 + 1)))
}
