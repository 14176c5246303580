//! The accounting region: a file shared by the processes of one container, and read by the host.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use crate::MAX_GPUS;
use crate::budget::Budget;
use crate::ledger::{Charge, Seen, Total};
use crate::uuid::Uuid;

/// First word of the file: `vgpureg` and a zero byte.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpureg\0");
/// Layout version. The library rejects any other.
pub const VERSION: u32 = 1;
/// Most processes of one container that can use GPUs at the same time. The fuzzer has fewer, for more executions per second.
pub const SLOTS: usize = if cfg!(fuzzing) { 16 } else { 1024 };

/// Account of one GPU in the container.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct GpuAccount {
    uuid: [AtomicU64; 2],
    pub(crate) claimed: AtomicU32,
    /// Memory of one context on this GPU in pages, as last measured; 0 if not measured yet.
    pub context_pages: AtomicU32,
    /// Device memory held by the container.
    pub total: Total,
    /// Number of memory requests refused by the limit.
    pub refused: AtomicU64,
    /// Time of the first refusal, in nanoseconds of `CLOCK_REALTIME`; 0 if there was none.
    pub first_refusal: AtomicU64,
    /// Memory beyond the limit that is on the host (oversubscription).
    pub spilled: Total,
    /// Number of requests for room: the device has no memory, though the container's limit has. It grows as long as a process waits.
    pub room_wanted: AtomicU32,
    padding: [u32; 1],
    /// The compute budget.
    pub budget: Budget,
    /// Moves of memory to the host.
    pub moves_out: Moves,
    /// Moves of memory back to the GPU.
    pub moves_in: Moves,
    reserved: [u64; 2],
}

/// Moves of memory in one direction since the container started, by all of its processes. A move of several GPUs' memory counts for each of
/// them.
#[repr(C)]
#[derive(Debug)]
pub struct Moves {
    /// Number of moves that have ended.
    pub count: AtomicU64,
    /// Memory that they moved, in bytes.
    pub bytes: AtomicU64,
    /// Time that they took, in nanoseconds. Out: for copies and unmapping. In: from the first try on, with the wait for room.
    pub took: AtomicU64,
}

/// State: no uncharged call of this process is in progress.
const NO_CALL: u32 = 0;
/// State: an uncharged call is in progress.
const CALL: u32 = 1;
/// State: none is in progress, and none begins unless the total is far from the limit.
const HELD_BACK: u32 = 2;

/// Memory of one process on one GPU.
#[repr(C)]
#[derive(Debug)]
pub struct GpuCharge {
    /// Pages charged.
    pub charge: Charge,
    /// Part of these that no allocation call requested: contexts, modules, stacks. In pages.
    pub overhead: AtomicU32,
    /// Part of these that is managed memory, which NVML does not list by process. In pages.
    pub managed: AtomicU32,
    /// Pages charged to [`GpuAccount::spilled`].
    pub spill: Charge,
    /// [`NO_CALL`], [`CALL`] or [`HELD_BACK`].
    unclaimed: AtomicU32,
    /// Pages of the charge that were moved to the host and come back before the next call that needs them.
    pub out: AtomicU32,
}

/// Slot of one process. The file lock on its byte tells whether the process is alive (see [`crate::map`]), and not the content of the slot. So
/// neither PID reuse nor PID namespaces matter.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// PID in the process's own namespace, for display and to find the process in NVML's lists; 0 for a slot that was never used.
    pub pid: AtomicU32,
    /// 1 while a context is being created whose memory is not known yet.
    pub making_context: AtomicU32,
    /// Time at which the slot was taken, in nanoseconds of `CLOCK_REALTIME`.
    pub since: AtomicU64,
    /// Number of calls that needed device memory, modulo 2³², in evictable containers: it tells the host whether the process is idle.
    pub calls: AtomicU32,
    /// Last order to leave ([`Turn::leave`](crate::limits::Turn::leave)) that the process has followed.
    pub left: AtomicU32,
    reserved: [u64; 5],
    /// Charges, indexed like [`Region::gpus`].
    pub gpus: [GpuCharge; MAX_GPUS],
}

/// Content of the file.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Region {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    slot_count: AtomicU32,
    gpu_count: AtomicU32,
    /// Highest index of a slot ever taken, plus one.
    pub slots_used: AtomicU32,
    padding: [u32; 9],
    /// The container's GPUs, in the order of their first use.
    pub gpus: [GpuAccount; MAX_GPUS],
    /// The container's processes.
    pub slots: [Slot; SLOTS],
}

/// Size of the file in bytes.
pub const SIZE: usize = size_of::<Region>();
const _: () = assert!(size_of::<Slot>() == 64 + 32 * MAX_GPUS && size_of::<GpuAccount>() == 64 + 1024);
// The moves have a cache line that was a reserved part of the budget.
const _: () = assert!(size_of::<Budget>() == 1024 - 64 && offset_of!(GpuAccount, moves_out) == 64 + size_of::<Budget>());

/// Returns the first bytes of a new file. The rest of its [`SIZE`] is zero.
#[must_use]
pub fn header() -> [u8; 24] {
    let mut bytes = [0; 24];
    let words = [MAGIC, u64::from(VERSION) | ((SIZE as u64) << 32), SLOTS as u64 | ((MAX_GPUS as u64) << 32)];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Error of [`Region::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The file does not start with the magic word.
    Magic,
    /// The file has another layout version.
    Version(u32),
    /// The size or the counts differ from this version's.
    Layout,
}

impl Region {
    /// Checks a mapped region. Must precede any other use.
    ///
    /// # Errors
    /// The file is not a region of this version.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.magic.load(Acquire) != MAGIC {
            return Err(Invalid::Magic);
        }
        match self.version.load(Relaxed) {
            VERSION => {}
            other => return Err(Invalid::Version(other)),
        }
        let figures = (self.size.load(Relaxed), self.slot_count.load(Relaxed), self.gpu_count.load(Relaxed));
        if figures == (SIZE as u32, SLOTS as u32, MAX_GPUS as u32) { Ok(()) } else { Err(Invalid::Layout) }
    }

    /// Returns the index of the GPU with this UUID, which is added if it is new. Returns `None` if all places are taken by other GPUs.
    /// [`crate::map::account`] prevents two processes from adding the same GPU at the same time.
    ///
    /// `claimed` goes from 0 (free) to 1 (being written) to 2 (readable). A process killed at 1 leaves the place unusable, and other processes
    /// take the next one: a kill costs a place, and never a wait.
    pub fn gpu(&self, uuid: Uuid) -> Option<usize> {
        let words = uuid.words();
        for (place, account) in self.gpus.iter().enumerate() {
            if account.claimed.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
                for (stored, word) in account.uuid.iter().zip(words) {
                    stored.store(word, Relaxed);
                }
                account.claimed.store(2, Release);
                return Some(self.find(uuid).unwrap_or(place));
            }
            // Another process may be writing this UUID right now. It is readable a few loads later, unless the writer was killed.
            for _ in 0..1000 {
                if account.claimed.load(Acquire) == 2 {
                    break;
                }
                core::hint::spin_loop();
            }
            if account.uuid() == Some(uuid) {
                return Some(place);
            }
        }
        None
    }

    /// Returns the index of the GPU with this UUID, if it has an account.
    #[must_use]
    pub fn find(&self, uuid: Uuid) -> Option<usize> {
        self.gpus.iter().position(|account| account.uuid() == Some(uuid))
    }

    /// Returns the slots that were ever in use, with their indices.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().take(self.slots_used.load(Acquire) as usize)
    }

    /// Holds back all uncharged calls, and returns the number of those in progress. The driver may allocate a granule for each of them.
    ///
    /// A process that charges memory and finds the total near the limit calls this, reads the total again afterwards (calls that ended in
    /// between have charged by then), and leaves room for that many granules. So there is room
    /// for a granule of each process that is not held back: each makes one uncharged call at a time, and is held back once it has charged a
    /// granule. "Near" has to be at least a granule for each process. Charging, reading the total, and these states are sequentially
    /// consistent: if one process comes near the limit while another begins a call, at least one of them sees the other.
    pub fn hold_back(&self, gpu: usize) -> u64 {
        // A process that makes uncharged calls has other memory that is charged. Without charges it has none in progress.
        let charges = self.used_slots().filter_map(|(_, slot)| slot.gpus.get(gpu)).filter(|charge| charge.charge.most() != 0);
        let has_begun = |charge: &&GpuCharge| {
            charge.unclaimed.load(SeqCst) != HELD_BACK && charge.unclaimed.compare_exchange(NO_CALL, HELD_BACK, SeqCst, SeqCst) == Err(CALL)
        };
        charges.filter(has_begun).count() as u64
    }

    /// Lowers a GPU's totals to what its processes hold, and releases what dead processes held. `dead` returns true if the process is gone that
    /// had the slot when its charge was read. Returns true if a total was lowered.
    pub fn recover(&self, gpu: usize, mut dead: impl FnMut(usize, &Slot, Seen) -> bool) -> bool {
        let Some(account) = self.gpus.get(gpu) else { return false };
        for (index, slot) in self.used_slots() {
            let Some(charge) = slot.gpus.get(gpu) else { continue };
            // Read before `dead` is called: the answer refers to the process that had the slot then.
            let (seen, spilled) = (charge.charge.see(), charge.spill.see());
            // The spill belongs to the same process if no other has taken the slot since.
            if seen.most() + spilled.most() != 0 && dead(index, slot, seen) && charge.charge.clear(seen) {
                charge.spill.clear(spilled);
            }
        }
        let charges = || self.used_slots().filter_map(|(_, slot)| slot.gpus.get(gpu));
        let lower = crate::ledger::recount(&account.total, || charges().map(|charge| &charge.charge));
        crate::ledger::recount(&account.spilled, || charges().map(|charge| &charge.spill)) || lower
    }
}

impl GpuAccount {
    /// Returns true if the account was never taken. Accounts are taken in order, so all later ones are free, too.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.claimed.load(Acquire) == 0
    }

    /// Returns the GPU's UUID, or `None` for an unused account.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        (self.claimed.load(Acquire) == 2).then(|| Uuid::from_words([self.uuid[0].load(Relaxed), self.uuid[1].load(Relaxed)]))
    }
}

impl Moves {
    /// Counts a move of `bytes` bytes that took `took` nanoseconds.
    pub fn add(&self, bytes: u64, took: u64) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.took.fetch_add(took, Relaxed);
    }
}

impl GpuCharge {
    /// Begins an uncharged call. Returns false if the process makes another one, or if it is held back and `is_far` returns false, which tells
    /// whether the total is far from the limit. [`GpuCharge::end_unclaimed`] must follow if it returns true.
    #[inline]
    pub fn begin_unclaimed(&self, is_far: impl Fn() -> bool) -> bool {
        match self.unclaimed.compare_exchange(NO_CALL, CALL, SeqCst, Relaxed) {
            Err(HELD_BACK) => self.begin_held_back(is_far),
            begun => begun.is_ok(),
        }
    }

    #[cold]
    fn begin_held_back(&self, is_far: impl Fn() -> bool) -> bool {
        if !is_far() || self.unclaimed.compare_exchange(HELD_BACK, CALL, SeqCst, Relaxed).is_err() {
            return false;
        }
        // A process that has come near the limit since may have read the state while it was held back.
        let far = is_far();
        if !far {
            self.unclaimed.store(HELD_BACK, Release);
        }
        far
    }

    /// Ends an uncharged call: it has allocated nothing, or its allocation is charged by now. With `held_back` the next call begins only if the
    /// total is far from the limit.
    #[inline]
    pub fn end_unclaimed(&self, held_back: bool) {
        self.unclaimed.store(if held_back { HELD_BACK } else { NO_CALL }, Release);
    }

    /// Returns true if the next uncharged call begins only if the total is far from the limit.
    #[must_use]
    #[inline]
    pub fn is_held_back(&self) -> bool {
        self.unclaimed.load(Relaxed) == HELD_BACK
    }

    /// Returns true if an uncharged call is in progress, or was when the process was killed.
    #[must_use]
    pub fn makes_unclaimed_call(&self) -> bool {
        self.unclaimed.load(Acquire) == CALL && self.charge.most() != 0
    }

    /// Clears everything for another process. Only the new owner of the slot may do this. A dead process's other fields stay readable until
    /// then.
    pub fn begin_anew(&self) {
        self.charge.begin_anew();
        self.spill.begin_anew();
        self.overhead.store(0, Relaxed);
        self.managed.store(0, Relaxed);
        self.unclaimed.store(NO_CALL, Relaxed);
        self.out.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests;
