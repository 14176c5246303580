//! A reservoir: a pool, or a device's graph memory.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use vgpu_region::ledger::pages;

use crate::memory::ledger::account::Claim;
use crate::memory::ledger::{account, changes};
use crate::memory::objects::captures;
use crate::session::Gpu;

/// Settles a reservoir: charges what it has reserved, in bytes, by `read`. `claim` was taken for its growth; it is settled or dropped.
/// `record` holds the charge in pages in its lower half.
pub fn settle(gpu: &Gpu, record: &AtomicU64, mut claim: Option<Claim<'_>>, read: impl Fn() -> Option<u64>) {
    let _relaxed = captures::leave_alone();
    loop {
        let seen = record.load(Acquire);
        let Some(reserved) = read().map(pages) else { break };
        let charged = seen as u32;
        if reserved == charged && record.load(Acquire) == seen {
            break;
        }
        let settled = changes::together(|| {
            // Two threads that settle at once read different figures; only one that saw the record unchanged may write.
            let next = (seen >> 32) << 32 | u64::from(reserved);
            record.compare_exchange(seen, next, AcqRel, Acquire).is_ok() && {
                match claim.take() {
                    Some(claim) => claim.settle(reserved.saturating_sub(charged)),
                    None => account::charge(gpu, reserved.saturating_sub(charged)),
                }
                account::release(gpu, charged.saturating_sub(reserved));
                true
            }
        });
        if settled {
            return;
        }
    }
    if let Some(claim) = claim {
        claim.drop_all();
    }
}
