//! All reservoirs of a GPU.

use core::sync::atomic::Ordering::Relaxed;

use crate::loader::driver;
use crate::memory::ledger::account::Claim;
use crate::memory::objects::pool_table::{Pool, attribute, for_each_of};
use crate::memory::objects::reservoir::settle;
use crate::memory::objects::{captures, graph_memory, pool_table};
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{Handle, POOL_RESERVED_CURRENT};

/// Settles a pool, with a claim for its growth if there is one.
pub fn settle_pool(gpu: &Gpu, pool: Handle, entry: &Pool, claim: Option<Claim<'_>>) {
    let before = entry.charged();
    settle(gpu, &entry.record, claim, || attribute(pool, POOL_RESERVED_CURRENT));
    if entry.charged() < before {
        // The room behind the last allocation may be gone.
        entry.tail.store(0, Relaxed);
    }
}

/// Settles all pools and the graph memory of a GPU.
pub fn settle_all_of(gpu: &Gpu) {
    for_each_of(gpu, |pool, entry| settle_pool(gpu, pool, entry, None));
    graph_memory::settle(gpu);
}

/// Gives unused memory of this process's pools and graphs back to the device, unless a capture is under way.
pub fn trim_idle(gpu: &Gpu) {
    if captures::may_go_on() {
        return;
    }
    // SAFETY: the program's own pool, which is not destroyed during the call.
    for_each_of(gpu, |pool, _| unsafe { _ = driver::pool_trim(pool, 0) });
    graph_memory::trim_idle(gpu);
    settle_all_of(gpu);
}

/// Settles all pools after a wait of the host, which lets them shrink.
#[inline]
pub fn settle_after_wait() {
    if pool_table::any() {
        settle_all();
    }
}

/// Settles all pools of all GPUs.
pub fn settle_all() {
    if let Some(session) = session::ready() {
        session.gpus().iter().for_each(settle_all_of);
    }
}
