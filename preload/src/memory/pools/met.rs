//! The pools that this process has met.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    Ordering::SeqCst,
};

use vgpu_region::ledger::PAGE;

use crate::cuda::{Device, Handle};
use crate::session::{self, Gpu};

/// A pool that this process has met.
pub struct Pool {
    handle: AtomicPtr<core::ffi::c_void>,
    /// The device in the upper half, the reserved pages that were charged in the lower; or [`ELSEWHERE`].
    pub(super) record: AtomicU64,
    /// How many threads ask the driver about it now.
    readers: AtomicU32,
    pub(super) is_shared: AtomicBool,
    /// Bytes in use when it turned out to have no room in one piece; 0 is never.
    pub(super) full_at: AtomicU64,
    /// Bytes in one piece behind all that was ever taken, at least: what the last step has left.
    pub(super) tail: AtomicU64,
}

/// Pools place allocations at multiples of this (seen on driver 580).
const STEP: u64 = 512;

/// In place of a handle: a record that is being written, or given up.
const WRITING: Handle = 1 as Handle;

impl Pool {
    /// The device of its memory, which none is if it is elsewhere, and the pages that it was charged.
    #[inline]
    pub fn device_and_charge(&self) -> (Device, u32) {
        let record = self.record.load(Relaxed);
        ((record >> 32) as Device, record as u32)
    }

    /// The pages that it was charged.
    pub(super) fn charged(&self) -> u32 {
        self.record.load(Relaxed) as u32
    }

    /// So many bytes were taken, and when `before` pages were charged: from a step that was added, or from what was there.
    #[inline]
    pub fn took(&self, before: u32, bytes: u64) {
        let bytes = bytes.next_multiple_of(STEP);
        let tail = match self.charged().checked_sub(before) {
            Some(grown) if grown != 0 => u64::from(grown) * PAGE,
            _ => self.tail.load(Relaxed),
        };
        self.tail.store(tail.saturating_sub(bytes), Relaxed);
    }

    /// Whether it has certainly room for `bytes` without another step.
    pub fn has_tail(&self, bytes: u64) -> bool {
        self.tail.load(Relaxed) >= bytes.next_multiple_of(STEP)
    }

    /// Its handle, if it is one, and its memory this GPU's.
    pub fn handle_on(&self, gpu: &Gpu) -> Option<Handle> {
        // In one order with what `leave` does, as whoever asks is counted first.
        let (handle, record) = (self.handle.load(SeqCst), self.record.load(Relaxed));
        (handle as usize > 1 && record != ELSEWHERE && (record >> 32) as Device == gpu.device).then_some(handle)
    }

    /// Gives up its place, when nobody asks about it any more: each asks for some 20 ns, and a thread that is gone with a fork is not
    /// waited for. Gives its record, and whether it was shared.
    pub(super) fn leave(&self) -> (u64, bool) {
        // A plain store may be seen after the load behind it: then somebody who is not counted yet would find the handle still there.
        self.handle.swap(WRITING, SeqCst);
        for _ in 0..50 {
            if self.readers.load(SeqCst) == 0 {
                break;
            }
            session::nap(1_000_000);
        }
        let left = (self.record.load(Acquire), self.is_shared.load(Relaxed));
        // From here on the place may be another pool's.
        self.handle.store(core::ptr::null_mut(), Release);
        left
    }
}

/// Few, and looked at after every wait, so they stand in a row. A place is taken by compare-and-swap and free again when its handle is
/// null.
static POOLS: [Pool; 512] = [const {
    let (handle, record, full_at, tail) = (AtomicPtr::new(core::ptr::null_mut()), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    Pool { handle, record, readers: AtomicU32::new(0), is_shared: AtomicBool::new(false), full_at, tail }
}; 512];
/// One above the highest place ever taken.
static POOLS_USED: AtomicUsize = AtomicUsize::new(0);
/// The record of a pool whose memory is not a device's.
pub const ELSEWHERE: u64 = u64::MAX;

/// All of them, and places that were given up.
pub fn all() -> impl Iterator<Item = &'static Pool> {
    POOLS.iter().take(POOLS_USED.load(Acquire))
}

/// What is known of a pool that was met.
pub fn find(handle: Handle) -> Option<&'static Pool> {
    all().find(|pool| pool.handle.load(Acquire) == handle)
}

/// Notes a pool. `None` if there are more than can be kept.
pub fn add(handle: Handle, record: u64) -> Option<&'static Pool> {
    let free = |pool: &Pool| pool.handle.compare_exchange(core::ptr::null_mut(), WRITING, AcqRel, Relaxed).is_ok();
    let place = POOLS.iter().position(free)?;
    let pool = POOLS.get(place)?;
    pool.record.store(record, Relaxed);
    pool.is_shared.store(false, Relaxed);
    pool.full_at.store(0, Relaxed);
    pool.tail.store(0, Relaxed);
    pool.handle.store(handle, Release);
    POOLS_USED.fetch_max(place + 1, AcqRel);
    Some(pool)
}

/// Whether any was ever met.
#[inline]
pub fn any() -> bool {
    POOLS_USED.load(Relaxed) != 0
}

/// Calls `with` for each pool of a GPU, which is not destroyed meanwhile.
pub fn for_each_of(gpu: &Gpu, with: impl Fn(Handle, &Pool)) {
    for pool in all() {
        pool.readers.fetch_add(1, SeqCst);
        if let Some(handle) = pool.handle_on(gpu) {
            with(handle, pool);
        }
        pool.readers.fetch_sub(1, AcqRel);
    }
}
