//! The pools that this process has met.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use vgpu_region::ledger::PAGE;

use crate::loader::driver;
use crate::os::clock;
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{Device, Handle, POOL_RESERVED_CURRENT, POOL_USED_CURRENT, SUCCESS};

/// Records a pool of the driver's own, with the device of its memory (`None`: elsewhere). Returns false if it cannot be recorded.
pub fn record_own(handle: Handle, device: Option<Device>) -> bool {
    find(handle).or_else(|| add(handle, device.map_or(ELSEWHERE, |device| (device as u64) << 32))).is_some()
}

/// Returns true if other GPUs or processes can use a pool's memory, so that no other memory can stand in for it.
pub fn is_shared(handle: Handle) -> bool {
    find(handle).is_none_or(|pool| pool.is_shared.load(Relaxed))
}

/// Returns true if a pool probably has room for `bytes` between its allocations. Only the pool knows whether the room is in one piece, and
/// if it is not, it grows by a step, which must be undone. So twice as much must be free, unless the room is known to be behind all
/// allocations, and a pool that had no room is not tried again until memory in it was freed.
pub fn has_room(pool: Handle, entry: &Pool, bytes: u64) -> bool {
    if entry.has_tail(bytes) {
        return true;
    }
    let (Some(reserved), Some(used)) = (attribute(pool, POOL_RESERVED_CURRENT), attribute(pool, POOL_USED_CURRENT)) else { return false };
    let full_at = entry.full_at.load(Relaxed);
    reserved.saturating_sub(used) >= bytes.saturating_mul(2) && (full_at == 0 || used < full_at)
}

/// Records that a pool had no room in one piece.
pub fn mark_full(pool: Handle, entry: &Pool) {
    entry.tail.store(0, Relaxed);
    if let Some(used) = attribute(pool, POOL_USED_CURRENT) {
        entry.full_at.store(used.max(1), Relaxed);
    }
}

/// Returns an attribute of a pool; `None` for a handle that is no pool.
pub fn attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the driver writes one word, or fails for a handle that is no pool.
    (unsafe { driver::pool_attribute(pool, attribute, &raw mut value) } == SUCCESS).then_some(value)
}

/// Returns the record of a pool. A pool that no intercepted call returned is a device's own, or imported: nothing can be allocated from
/// that.
pub fn find_or_record(pool: Handle) -> Option<&'static Pool> {
    let own = |gpu: &&Gpu| {
        let (mut usual, mut first) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the driver writes one handle each.
        unsafe {
            driver::device_pool(&raw mut usual, gpu.device);
            driver::device_default_pool(&raw mut first, gpu.device);
        }
        pool == usual || pool == first
    };
    let met = || session::ready()?.gpus().iter().find(own).and_then(|gpu| add(pool, (gpu.device as u64) << 32));
    find(pool).or_else(met)
}

/// A pool that this process has met.
pub struct Pool {
    /// Handle; null in a free place.
    handle: AtomicPtr<core::ffi::c_void>,
    /// The device in the upper half, the reserved pages that were charged in the lower; or [`ELSEWHERE`].
    pub record: AtomicU64,
    /// Number of threads that ask the driver about it now.
    readers: AtomicU32,
    /// Set if other GPUs or processes can use its memory.
    pub is_shared: AtomicBool,
    /// Bytes in use when it had no room in one piece; 0 if it always had.
    pub(super) full_at: AtomicU64,
    /// Lower bound of the bytes in one piece behind all allocations: what the last step has left.
    pub(super) tail: AtomicU64,
}

/// Alignment in bytes of allocations in pools (seen on driver 580).
const STEP: u64 = 512;
/// Stands for the handle in a record that is being written or given up.
const WRITING: Handle = 1 as Handle;

impl Pool {
    /// Returns the device of its memory (no valid one if it is elsewhere) and its charge in pages.
    #[inline]
    pub fn device_and_charge(&self) -> (Device, u32) {
        let record = self.record.load(Relaxed);
        ((record >> 32) as Device, record as u32)
    }

    /// Returns its charge in pages.
    pub(super) fn charged(&self) -> u32 {
        self.record.load(Relaxed) as u32
    }

    /// Records an allocation of `bytes` made while `before` pages were charged: from a new step, or from the room that was there.
    #[inline]
    pub fn took(&self, before: u32, bytes: u64) {
        let bytes = bytes.next_multiple_of(STEP);
        let tail = match self.charged().checked_sub(before) {
            Some(grown) if grown != 0 => u64::from(grown) * PAGE,
            _ => self.tail.load(Relaxed),
        };
        self.tail.store(tail.saturating_sub(bytes), Relaxed);
    }

    /// Returns true if it certainly has room for `bytes` without another step.
    pub fn has_tail(&self, bytes: u64) -> bool {
        self.tail.load(Relaxed) >= bytes.next_multiple_of(STEP)
    }

    /// Returns its handle if its memory is on this GPU.
    pub fn handle_on(&self, gpu: &Gpu) -> Option<Handle> {
        // In one order with `leave`, as a reader is counted before this.
        let (handle, record) = (self.handle.load(SeqCst), self.record.load(Relaxed));
        (handle as usize > 1 && record != ELSEWHERE && (record >> 32) as Device == gpu.device).then_some(handle)
    }

    /// Frees its place once it has no readers. A reader takes some 20 ns; one that is gone with a fork is not waited for. Returns its
    /// record, and whether it was shared.
    pub fn leave(&self) -> (u64, bool) {
        // A plain store could be seen after the load that follows, and a reader that is not counted yet could still find the handle.
        self.handle.swap(WRITING, SeqCst);
        for _ in 0..50 {
            if self.readers.load(SeqCst) == 0 {
                break;
            }
            clock::nap(1_000_000);
        }
        let left = (self.record.load(Acquire), self.is_shared.load(Relaxed));
        // Another pool may take the place from here on.
        self.handle.store(core::ptr::null_mut(), Release);
        left
    }
}

/// All pools. They are few, and looked at after every wait, so they are in an array. A place is taken by compare-and-swap, and free when
/// its handle is null.
static POOLS: [Pool; 512] = [const {
    let (handle, record, full_at, tail) = (AtomicPtr::new(core::ptr::null_mut()), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    Pool { handle, record, readers: AtomicU32::new(0), is_shared: AtomicBool::new(false), full_at, tail }
}; 512];

/// One above the highest place ever taken.
static POOLS_USED: AtomicUsize = AtomicUsize::new(0);
/// The record of a pool whose memory is not a device's.
pub const ELSEWHERE: u64 = u64::MAX;

/// Iterates over all pools, and over freed places.
pub fn all() -> impl Iterator<Item = &'static Pool> {
    POOLS.iter().take(POOLS_USED.load(Acquire))
}

/// Returns the record of a pool that was met.
pub fn find(handle: Handle) -> Option<&'static Pool> {
    all().find(|pool| pool.handle.load(Acquire) == handle)
}

/// Records a pool. `None` if the table is full.
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

/// Returns true if a pool was ever met.
#[inline]
pub fn any() -> bool {
    POOLS_USED.load(Relaxed) != 0
}

/// Calls `with` for each pool of a GPU. The pool is not destroyed during it.
pub fn for_each_of(gpu: &Gpu, with: impl Fn(Handle, &Pool)) {
    for pool in all() {
        pool.readers.fetch_add(1, SeqCst);
        if let Some(handle) = pool.handle_on(gpu) {
            with(handle, pool);
        }
        pool.readers.fetch_sub(1, AcqRel);
    }
}
