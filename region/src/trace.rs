//! Trace rings: the GPU calls of a container's processes, for tracing from the host.
//!
//! The rings follow the accounts in the region's file, one for each slot, once the host has made the file long enough; a container that is not
//! traced has none. A process writes into the ring of its slot and never waits. The host copies from it and never maps it. The records of a
//! killed process stay, and the next owner of the slot continues after them.
//!
//! The tenant can write anything in here: a reader validates every index and length.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::region::{self, SLOTS};

/// First word of a ring in use: `vgputrc` and a zero byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vgputrc\0");
/// Layout version. Readers and processes ignore a ring of any other.
pub const VERSION: u32 = 1;
/// Capacity of a ring in records. The fuzzer has smaller rings, for more executions per second.
pub const CAPACITY: usize = if cfg!(fuzzing) { 1 << 7 } else { 1 << 15 };
/// Most functions of the driver that are counted.
pub const CALLS: usize = 254;
/// Most names of kernels.
pub const NAMES: usize = if cfg!(fuzzing) { 31 } else { 1023 };
/// Longest name of a function of the driver, in bytes.
pub const CALL_LENGTH: usize = 48;
/// Longest name of a kernel, in bytes. Longer ones are truncated.
pub const NAME_LENGTH: usize = 496;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A process has begun to write. `place` and `amount` are its name.
    Start = 1,
    /// Kernels were launched; `amount` is their number.
    Kernel = 2,
    /// A graph was launched; `amount` is its number of kernels, if known.
    Graph = 3,
    /// A copy of `amount` bytes; `name` is its [`Direction`].
    Copy = 4,
    /// `amount` elements were filled.
    Fill = 5,
    /// Memory of `amount` bytes was allocated at `place`.
    Allocate = 6,
    /// Memory at `place` was freed.
    Free = 7,
    /// The host waited for the GPU.
    Synchronize = 8,
    /// Launches were held back until the budget allowed them.
    Budget = 9,
    /// Launches were held back while it was another container's turn.
    Turn = 10,
    /// The memory limit refused `amount` bytes.
    Refused = 11,
    /// The driver was started.
    Init = 12,
    /// Another call, which is only counted.
    Other = 13,
    /// Memory of `amount` bytes was moved to the host from the GPU with ordinal `place`.
    MoveOut = 14,
    /// Memory of `amount` bytes was moved back to the GPU with ordinal `place`, after the wait for room there.
    MoveIn = 15,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 15] = [
        Self::Start,
        Self::Kernel,
        Self::Graph,
        Self::Copy,
        Self::Fill,
        Self::Allocate,
        Self::Free,
        Self::Synchronize,
        Self::Budget,
        Self::Turn,
        Self::Refused,
        Self::Init,
        Self::Other,
        Self::MoveOut,
        Self::MoveIn,
    ];

    /// Returns the kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Direction of a copy, numbered like `cudaMemcpyKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Direction {
    /// Host to device.
    ToDevice = 1,
    /// Device to host.
    ToHost = 2,
    /// Within the device, or from one to another.
    Within = 3,
    /// Determined by the addresses.
    ByAddress = 4,
}

/// Flag: the call failed.
pub const FAILED: u8 = 1;
/// Flag: the call was captured into a graph, and ran nothing.
pub const CAPTURED: u8 = 2;
/// Flag: `gpu_begin` and `gpu_took` will be filled in.
pub const TIMED: u8 = 4;

/// One record. Times are nanoseconds.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Record {
    /// The record's number plus one, once it is complete.
    pub sequence: AtomicU64,
    /// Start of the call, by the process's `CLOCK_MONOTONIC`.
    pub begin: AtomicU64,
    /// Duration of the call on the host.
    pub took: AtomicU64,
    /// PID in the process's own namespace in the lower half, the thread's number in the upper.
    pub who: AtomicU64,
    /// Kind, flags and indices ([`What`]).
    pub what: AtomicU64,
    /// The stream's handle, or an address of memory.
    pub place: AtomicU64,
    /// Amount ([`Kind`] has its meaning).
    pub amount: AtomicU64,
    /// Start of the work on the GPU, by a clock of the record's context with an arbitrary origin.
    pub gpu_begin: AtomicU64,
    /// Duration on the GPU plus one; 0 if not known yet.
    pub gpu_took: AtomicU64,
    /// Always 0.
    pub reserved: AtomicU64,
}

/// Size of a record in bytes.
pub const RECORD_SIZE: usize = size_of::<Record>();

/// Kind, flags and indices of a record, packed into one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// A [`Kind`].
    pub kind: u8,
    /// [`FAILED`], [`CAPTURED`], [`TIMED`].
    pub flags: u8,
    /// Number of the context in the process.
    pub context: u8,
    /// Index of the driver's function in [`Ring::calls`] plus one; 0 if none.
    pub call: u8,
    /// Index of the kernel's name in [`Ring::names`] plus one, 0 if none. For a copy its [`Direction`].
    pub name: u16,
}

impl What {
    /// Packs the word.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from_le_bytes([self.kind, self.flags, self.context, self.call, self.name as u8, (self.name >> 8) as u8, 0, 0])
    }

    /// Unpacks a word.
    #[must_use]
    pub fn of(word: u64) -> Self {
        let [kind, flags, context, call, low, high, ..] = word.to_le_bytes();
        Self { kind, flags, context, call, name: u16::from_le_bytes([low, high]) }
    }
}

/// A text of at most 8 × `N` bytes, written once.
#[repr(C)]
#[derive(Debug)]
pub struct Text<const N: usize>([AtomicU64; N]);

impl<const N: usize> Text<N> {
    /// Writes the text, truncated to its capacity.
    pub fn set(&self, text: &[u8]) {
        for (word, place) in self.0.iter().enumerate() {
            let mut bytes = [0; 8];
            for (byte, from) in bytes.iter_mut().zip(text.iter().skip(word * 8)) {
                *byte = *from;
            }
            place.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }

    /// Returns true if it equals the text, truncated to its capacity.
    #[must_use]
    pub fn is(&self, text: &[u8]) -> bool {
        let mut own = self.0.iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
        let wanted = text.iter().copied().chain(core::iter::repeat(0));
        wanted.take(N * 8).all(|byte| own.next() == Some(byte))
    }
}

/// Counter of one function of the driver.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// Number of calls.
    pub count: AtomicU64,
    /// Total time on the host, in nanoseconds.
    pub took: AtomicU64,
    /// Name of the function, padded with zeros.
    pub name: Text<{ CALL_LENGTH / 8 }>,
}

/// A kernel's name.
#[repr(C)]
#[derive(Debug)]
pub struct Name {
    /// Hash of the whole name.
    pub hash: AtomicU64,
    reserved: AtomicU64,
    /// The name, truncated, and padded with zeros.
    pub text: Text<{ NAME_LENGTH / 8 }>,
}

/// Header of a ring.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    capacity: AtomicU32,
    /// Number of records begun so far.
    pub head: AtomicU64,
    /// Offset from the process's `CLOCK_MONOTONIC` to nanoseconds since 1970, wrapping.
    pub since_1970: AtomicU64,
    /// PID of the process that writes, in its own namespace.
    pub pid: AtomicU32,
    /// Number of [`Ring::calls`] in use.
    pub calls: AtomicU32,
    /// Number of [`Ring::names`] in use.
    pub names: AtomicU32,
    padding: AtomicU32,
    reserved: [u64; 2],
}

/// Size of the header in bytes.
pub const HEADER_SIZE: usize = size_of::<Header>();

/// One process's ring.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Ring {
    /// The header.
    pub header: Header,
    /// Functions of the driver that were called.
    pub calls: [Call; CALLS],
    /// Names of kernels.
    pub names: [Name; NAMES],
    /// The newest records, each at its number modulo [`CAPACITY`].
    pub records: [Record; CAPACITY],
}

/// Size of a ring in bytes.
pub const RING_SIZE: usize = size_of::<Ring>();
/// Size of a region's file with rings, in bytes. The rings are holes until a process is traced.
pub const FILE_SIZE: u64 = (region::SIZE + SLOTS * RING_SIZE) as u64;
/// Most rings of a container that memory is taken for: about 100 MiB. More processes at a time are not traced.
pub const TRACED_AT_ONCE: usize = 32;
/// Most memory that a region's file with rings may take, in bytes.
pub const MAX_MEMORY: u64 = (region::SIZE + TRACED_AT_ONCE * RING_SIZE) as u64;
const _: () = assert!(region::SIZE.is_multiple_of(4096) && HEADER_SIZE == 64 && RECORD_SIZE == 80);

/// Returns the offset of a slot's ring in the file, in bytes.
#[must_use]
pub const fn offset(slot: usize) -> u64 {
    (region::SIZE + slot * RING_SIZE) as u64
}

impl Header {
    /// Returns true if the ring is in use and of this version.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION && self.capacity.load(Relaxed) as usize == CAPACITY
    }

    /// Takes the ring over for this process.
    pub fn begin(&self, pid: u32, since_1970: u64) {
        self.version.store(VERSION, Relaxed);
        self.capacity.store(CAPACITY as u32, Relaxed);
        self.since_1970.store(since_1970, Relaxed);
        self.pid.store(pid, Relaxed);
        self.magic.store(MAGIC, Release);
    }
}

impl Ring {
    /// Takes the next record. It is reused [`CAPACITY`] records later, complete or not: writers never wait.
    pub fn take(&self) -> Option<(u64, &Record)> {
        let number = self.header.head.fetch_add(1, Relaxed);
        let record = self.records.get((number % CAPACITY as u64) as usize)?;
        record.sequence.store(0, Relaxed);
        core::sync::atomic::fence(Release);
        Some((number, record))
    }

    /// Enters the time of work on the GPU, if its record is still there.
    pub fn ran(&self, number: u64, begin: u64, took: u64) {
        let Some(record) = self.records.get((number % CAPACITY as u64) as usize) else { return };
        if record.sequence.load(Acquire) == number.wrapping_add(1) {
            record.gpu_begin.store(begin, Relaxed);
            record.gpu_took.store(took.saturating_add(1), Release);
        }
    }

    /// Returns the index of a function of the driver plus one, or 0 if all places are taken.
    pub fn call(&self, name: &[u8]) -> u8 {
        let used = self.header.calls.load(Acquire);
        let known = self.calls.iter().take(used as usize).position(|call| call.name.is(name));
        let place = known.or_else(|| {
            // Two threads that add the same function at once both get a place: the reader adds them up.
            let place = take_place(&self.header.calls, CALLS)?;
            self.calls.get(place)?.name.set(name);
            Some(place)
        });
        place.map_or(0, |place| place as u8 + 1)
    }

    /// Returns the index of a kernel's name plus one, or 0 if all places are taken.
    pub fn name(&self, name: &[u8]) -> u16 {
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let used = self.header.names.load(Acquire);
        let known = self.names.iter().take(used as usize).position(|known| known.hash.load(Relaxed) == hash && known.text.is(name));
        let place = known.or_else(|| {
            let place = take_place(&self.header.names, NAMES)?;
            let known = self.names.get(place)?;
            known.text.set(name);
            known.hash.store(hash, Release);
            Some(place)
        });
        place.map_or(0, |place| place as u16 + 1)
    }
}

fn take_place(used: &AtomicU32, most: usize) -> Option<usize> {
    let next = |used: u32| ((used as usize) < most).then_some(used + 1);
    used.fetch_update(Release, Acquire, next).ok().map(|place| place as usize)
}

#[cfg(test)]
mod tests;
