//! The accounting region: a file shared by one container's processes and read by the host side.

use core::mem::size_of;
use core::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

use crate::MAX_GPUS;
use crate::budget::Budget;
use crate::ledger::{Charge, Seen, Total};
use crate::uuid::Uuid;

/// First word of the file: `vgpureg` and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpureg\0");
/// Layout version; a library refuses another one.
pub const VERSION: u32 = 1;
/// Most processes that can use GPUs in one container at a time.
pub const SLOTS: usize = 1024;

/// One GPU's account in the container.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct GpuAccount {
    uuid: [AtomicU64; 2],
    pub(crate) claimed: AtomicU32,
    /// What one context costs on this GPU in pages, as last measured; 0 is unknown yet.
    pub context_pages: AtomicU32,
    /// Device memory held by the container.
    pub total: Total,
    /// Requests for memory refused by the limit.
    pub refused: AtomicU64,
    /// When the oldest refusal was, in nanoseconds of `CLOCK_REALTIME`; 0 is never.
    pub first_refusal: AtomicU64,
    /// Memory beyond the limit that lies on the host (oversubscription).
    pub spilled: Total,
    padding: [u64; 1],
    /// The compute budget.
    pub budget: Budget,
}

/// No call of this process is under way for which nothing is charged.
const NO_CALL: u32 = 0;
/// One is.
const CALL: u32 = 1;
/// None is, and none begins before the limit is seen to be far.
const HELD_BACK: u32 = 2;

/// What one process has on one GPU.
#[repr(C)]
#[derive(Debug)]
pub struct GpuCharge {
    /// Pages charged.
    pub charge: Charge,
    /// Of these: contexts, modules, stacks, whatever no allocation call asked for. Pages.
    pub overhead: AtomicU32,
    /// Of these: managed memory, which NVML does not list by process. Pages.
    pub managed: AtomicU32,
    /// Pages of [`GpuAccount::spilled`].
    pub spill: Charge,
    /// [`NO_CALL`], [`CALL`] or [`HELD_BACK`].
    unclaimed: AtomicU32,
    reserved: [u32; 1],
}

/// One process's place in the region. Whether it lives is told by the file lock on its byte (see [`crate::map`]), never by
/// what is written here, so neither PID reuse nor PID namespaces matter.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// PID in the process's own namespace, for display and for finding it in NVML's lists; 0 for a slot never used.
    pub pid: AtomicU32,
    /// 1 while a context is being made whose cost is not known yet.
    pub making_context: AtomicU32,
    /// When the slot was taken, in nanoseconds of `CLOCK_REALTIME`.
    pub since: AtomicU64,
    reserved: [u64; 6],
    /// By the place of the GPU in [`Region::gpus`].
    pub gpus: [GpuCharge; MAX_GPUS],
}

/// The file's content.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Region {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    slot_count: AtomicU32,
    gpu_count: AtomicU32,
    /// One above the highest slot ever taken.
    pub slots_used: AtomicU32,
    padding: [u32; 9],
    /// The container's GPUs, in the order in which they were first met.
    pub gpus: [GpuAccount; MAX_GPUS],
    /// The container's processes.
    pub slots: [Slot; SLOTS],
}

/// Size of the file in bytes.
pub const SIZE: usize = size_of::<Region>();
const _: () = assert!(size_of::<Slot>() == 64 + 32 * MAX_GPUS && size_of::<GpuAccount>() == 64 + size_of::<Budget>());
const _: () = assert!(size_of::<Budget>() == 1024);

/// The bytes that a new file starts with; the rest of its [`SIZE`] is zero.
#[must_use]
pub fn header() -> [u8; 24] {
    let mut bytes = [0; 24];
    let words = [MAGIC, u64::from(VERSION) | ((SIZE as u64) << 32), SLOTS as u64 | ((MAX_GPUS as u64) << 32)];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Why a region cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// It does not start with our magic word.
    Magic,
    /// It was written for another layout.
    Version(u32),
    /// Its size or its counts are not this version's.
    Layout,
}

impl Region {
    /// Checks a mapped region before anything else in it is used.
    ///
    /// # Errors
    /// Says what is wrong with it.
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

    /// The place of the GPU with this UUID, taken now if it is new. `None` if all are taken by others. Two who come first at the same time
    /// keep from one another by [`crate::map::account`].
    ///
    /// `claimed` goes 0 (free) → 1 (being written) → 2 (readable). A process killed at 1 leaves that place unusable, and one
    /// that finds it there takes the next: it costs a place, never a wait.
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
            // Somebody may be writing this very UUID right now: a few loads later it is readable, unless its writer is gone.
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

    /// The place of the GPU with this UUID, if it has one.
    #[must_use]
    pub fn find(&self, uuid: Uuid) -> Option<usize> {
        self.gpus.iter().position(|account| account.uuid() == Some(uuid))
    }

    /// The slots that have ever been in use.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().take(self.slots_used.load(Acquire) as usize)
    }

    /// Holds back all calls for which nothing is charged, though the driver may take a granule for each, and tells how many have begun.
    ///
    /// Whoever charges memory, and finds the total near the limit then, calls this and leaves room for as many granules. So there is room
    /// for a granule of each process that is not held back, of which each makes one such call at a time; and it is held back when it has
    /// charged one. What is near has to be a granule for each process, or more. Charging, reading the total and the words are in one order
    /// for all (sequentially consistent): of two who come near and begin again at once, one sees the other.
    pub fn hold_back(&self, gpu: usize) -> u64 {
        // Such a call lies among others of its process, which are charged: the calls of those whose charges were given back have ended.
        let charges = self.used_slots().filter_map(|(_, slot)| slot.gpus.get(gpu)).filter(|charge| charge.charge.most() != 0);
        let has_begun = |charge: &&GpuCharge| {
            charge.unclaimed.load(SeqCst) != HELD_BACK && charge.unclaimed.compare_exchange(NO_CALL, HELD_BACK, SeqCst, SeqCst) == Err(CALL)
        };
        charges.filter(has_begun).count() as u64
    }

    /// Brings a GPU's totals down to what its processes hold. `dead` tells whether a slot's process is gone, which is the one that had the
    /// place when the charge was seen; what such a process held is given back. Returns whether a total became lower.
    pub fn recover(&self, gpu: usize, mut dead: impl FnMut(usize, &Slot, Seen) -> bool) -> bool {
        let Some(account) = self.gpus.get(gpu) else { return false };
        for (index, slot) in self.used_slots() {
            let Some(charge) = slot.gpus.get(gpu) else { continue };
            // Seen before asking: an answer is about whoever had the place then.
            let (seen, spilled) = (charge.charge.see(), charge.spill.see());
            // What was seen of the spill is the same process's if nobody has moved in since.
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
    /// Which GPU this is; `None` for an unused account.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        (self.claimed.load(Acquire) == 2).then(|| Uuid::from_words([self.uuid[0].load(Relaxed), self.uuid[1].load(Relaxed)]))
    }
}

impl GpuCharge {
    /// Begins a call that nothing is charged for, if the process makes no other at the time and is not held back. If it is, that ends with
    /// `is_far`, which tells whether the total is far from the limit. [`GpuCharge::end_unclaimed`] must follow.
    #[inline]
    pub fn begin_unclaimed(&self, is_far: impl Fn() -> bool) -> bool {
        match self.unclaimed.compare_exchange(NO_CALL, CALL, SeqCst, Relaxed) {
            Err(HELD_BACK) => self.begin_again(is_far),
            begun => begun.is_ok(),
        }
    }

    #[cold]
    fn begin_again(&self, is_far: impl Fn() -> bool) -> bool {
        if !is_far() || self.unclaimed.compare_exchange(HELD_BACK, CALL, SeqCst, Relaxed).is_err() {
            return false;
        }
        // Whoever has come near since may have seen it held back.
        let far = is_far();
        if !far {
            self.unclaimed.store(HELD_BACK, Release);
        }
        far
    }

    /// Such a call has taken nothing, or what it took is charged, and then the next one is `held_back` until it is seen how far the limit is.
    #[inline]
    pub fn end_unclaimed(&self, held_back: bool) {
        self.unclaimed.store(if held_back { HELD_BACK } else { NO_CALL }, Release);
    }

    /// Whether none begins before the limit is seen to be far.
    #[must_use]
    #[inline]
    pub fn is_held_back(&self) -> bool {
        self.unclaimed.load(Relaxed) == HELD_BACK
    }

    /// Whether such a call is under way (or was, when its process was killed).
    #[must_use]
    pub fn makes_unclaimed_call(&self) -> bool {
        self.unclaimed.load(Acquire) == CALL && self.charge.most() != 0
    }

    /// Begins anew for another process. Only the owner of the slot may do this. What a dead process had beside its charge stays
    /// readable until then.
    pub fn begin_anew(&self) {
        self.charge.begin_anew();
        self.spill.begin_anew();
        self.overhead.store(0, Relaxed);
        self.managed.store(0, Relaxed);
        self.unclaimed.store(NO_CALL, Relaxed);
    }
}

#[cfg(test)]
mod tests;
