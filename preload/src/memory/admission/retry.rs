//! The account says no. Before the program hears it: what the dead held is given back, what pools and graphs do not use is let go of,
//! calls under way are waited for, and NVML is asked for the truth.

use core::sync::atomic::Ordering::Acquire;

use vgpu_region::map::Census;
use vgpu_region::region::GpuCharge;

use crate::memory::admission::near_limit;
use crate::memory::admission::near_limit::try_claim;
use crate::memory::ledger::account::Claim;
use crate::memory::objects::reservoirs;
use crate::memory::reconcile::dead::recover;
use crate::os::clock;
use crate::os::clock::nap;
use crate::session;
use crate::session::Gpu;

/// In nanoseconds: for so long, and as long again for each that is being made, no context need be finished for which others wait. One alone
/// takes a fifth of a second (H200); those of many processes may grow side by side, and all be finished late.
const PATIENCE: u64 = 2_000_000_000;

/// Room for `pages`, which are for a `context` of this thread's or for something else.
#[cold]
pub fn find(gpu: &Gpu, pages: u32, context: bool) -> Option<Claim<'_>> {
    // The first context that was measured tells what this one costs.
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
        if count == 0 || now.saturating_sub(makers.1) > PATIENCE * (count + 1) {
            break;
        }
        nap(5_000_000);
    }
    reservoirs::trim_idle(gpu);
    let mut certain = false;
    // What calls under way have claimed may be more than they take, and what they take is not certain before they end.
    for microseconds in [0, 100, 200, 400, 800, 1600] {
        nap(microseconds * 1_000);
        let taking = someone_is_taking(gpu);
        // NVML takes milliseconds where many processes are: once it was certain, it is asked again only if the account has room.
        if (!certain || gpu.left() >= u64::from(wanted()))
            && let Some(claim) = near_limit::begin_certain(gpu, wanted(), |now| {
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
