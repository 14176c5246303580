//! The full recount before a refusal: memory of dead processes is given back, unused memory of pools and graphs is released, calls under
//! way are waited for, and the account is compared with NVML.

use core::sync::atomic::Ordering::Acquire;

use vgpu_region::map::Census;
use vgpu_region::region::GpuCharge;

use crate::memory::admission::near_limit::{self, try_claim};
use crate::memory::ledger::account::Claim;
use crate::memory::objects::reservoirs;
use crate::memory::reconcile::dead::recover;
use crate::os::clock::{self, nap};
use crate::session::{self, Gpu};

/// Longest wait, in nanoseconds, for the next context under construction to be finished; as long again for each one. One alone takes a
/// fifth of a second (H200), but those of many processes may progress together and all be finished late.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Claims `pages` after a full recount. With `context` they are for a context that this thread makes.
#[cold]
pub fn find(gpu: &Gpu, pages: u32, context: bool) -> Option<Claim<'_>> {
    // The first context that was measured tells the cost of this one.
    let wanted = || if context { gpu.context_pages().unwrap_or(pages) } else { pages };
    let mut makers = ((0, 0), clock::monotonic());
    loop {
        recover(gpu);
        reservoirs::settle_all_of(gpu);
        if let Some(claim) = try_claim(gpu, wanted()) {
            return Some(claim);
        }
        let (now, guessing) = (clock::monotonic(), guesses(gpu, context));
        if guessing != makers.0 {
            makers = (guessing, now);
        }
        let (count, _) = guessing;
        if count == 0 || now.saturating_sub(makers.1) > PATIENCE_NS * (count + 1) {
            break;
        }
        nap(5_000_000);
    }
    reservoirs::trim_idle(gpu);
    let mut certain = false;
    // Calls under way may have claimed more than they take, and what they take is not certain before they end.
    for microseconds in [0, 100, 200, 400, 800, 1600] {
        nap(microseconds * 1_000);
        let taking = calls_are_under_way(gpu);
        // NVML takes milliseconds with many processes: once it was certain, it is asked again only if the account has room.
        if (!certain || gpu.left() >= u64::from(wanted()))
            && let Some(claim) = near_limit::begin_certain(gpu, wanted(), |now| {
                certain = now;
                recover(gpu);
            })
        {
            return Some(claim);
        }
        // Calls that were under way during the claim may have caused its failure.
        if !taking && !calls_are_under_way(gpu) {
            break;
        }
    }
    None
}

/// Returns true while a call of any process is under way, which may give back part of its claim.
fn calls_are_under_way(gpu: &Gpu) -> bool {
    let Some(session) = session::ready() else { return false };
    let takes = |charge: &GpuCharge| charge.charge.in_flight() || charge.makes_unclaimed_call();
    session.membership.region.used_slots().any(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(takes))
}

/// Returns the number of living processes that make a context of unknown cost, and a hash that tells which. With `context` this process,
/// which makes one itself, is left out.
fn guesses(gpu: &Gpu, context: bool) -> (u64, u64) {
    let Some(session) = session::ready() else { return (0, 0) };
    let census = Census::open(session::region_path());
    let own = session.membership.index;
    let makers = session.membership.region.used_slots().filter(|(_, slot)| slot.making_context.load(Acquire) != 0);
    let guessing = makers.filter(|(_, slot)| slot.gpus.get(gpu.place).is_some_and(|charge| charge.charge.in_flight()));
    let alive = guessing.filter(|&(index, _)| if index == own { !context } else { !census.is_dead(index) });
    alive.fold((0, 0_u64), |(count, which), (index, _)| (count + 1, which.wrapping_mul(31).wrapping_add(index as u64 + 1)))
}
