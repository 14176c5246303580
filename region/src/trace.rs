//! Rings of what a container's processes did on the GPU, for whoever traces them from the host.
//!
//! They lie behind the accounts in the region's file, one for each of its slots, and only once the host side has made the file long
//! enough: a container that nobody traces has none. A process writes into the ring of its slot and never waits; the host side
//! copies out of it and never maps it. What a killed process has written stays. The next owner of the slot goes on behind it.
//!
//! Whatever is in here was written by the tenant: a reader takes nothing in it as an index or a length without looking.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::region::{self, SLOTS};

/// First word of a ring in use: `vgputrc` and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vgputrc\0");
/// Layout version; a reader and a process leave a ring of another one alone.
pub const VERSION: u32 = 1;
/// Records that a ring holds.
pub const CAPACITY: usize = 1 << 15;
/// Different functions of the driver that are counted.
pub const CALLS: usize = 254;
/// Different names of kernels that are kept.
pub const NAMES: usize = 1023;
/// Longest name of a function of the driver, in bytes.
pub const CALL_LENGTH: usize = 48;
/// Longest name of a kernel, in bytes; longer ones are cut.
pub const NAME_LENGTH: usize = 496;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A process has begun to write: `place` and `amount` are its name.
    Start = 1,
    /// Kernels were launched; `amount` says how many.
    Kernel = 2,
    /// A graph was launched; `amount` says how many kernels are in it, where that is known.
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
    /// Only counted.
    Other = 13,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
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
    ];

    /// The kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// From where to where a copy went, by the numbers of `cudaMemcpyKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Direction {
    /// Host to device.
    ToDevice = 1,
    /// Device to host.
    ToHost = 2,
    /// Within the device, or from one to another.
    Within = 3,
    /// The addresses say so.
    ByAddress = 4,
}

/// The call failed.
pub const FAILED: u8 = 1;
/// It was recorded into a graph, and ran nothing.
pub const CAPTURED: u8 = 2;
/// `gpu_begin` and `gpu_took` are going to be filled in.
pub const TIMED: u8 = 4;

/// One record. Times are nanoseconds.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Record {
    /// One more than the record's number, once it is complete.
    pub sequence: AtomicU64,
    /// When the call began, by the process's `CLOCK_MONOTONIC`.
    pub begin: AtomicU64,
    /// How long it took on the host.
    pub took: AtomicU64,
    /// PID in the process's own namespace, and above it the thread's number.
    pub who: AtomicU64,
    /// See [`What`].
    pub what: AtomicU64,
    /// The stream's handle, or an address of memory.
    pub place: AtomicU64,
    /// See [`Kind`].
    pub amount: AtomicU64,
    /// When the work began on the GPU, by a clock of the record's context that begins anywhere.
    pub gpu_begin: AtomicU64,
    /// One more than how long it took there; 0 is not known yet.
    pub gpu_took: AtomicU64,
    /// 0.
    pub reserved: AtomicU64,
}

/// Size of a record in bytes.
pub const RECORD_SIZE: usize = size_of::<Record>();

/// A record's word that says what it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// A [`Kind`].
    pub kind: u8,
    /// [`FAILED`], [`CAPTURED`], [`TIMED`].
    pub flags: u8,
    /// Which of the process's contexts.
    pub context: u8,
    /// One more than the place in [`Ring::calls`] of the driver's function; 0 is none.
    pub call: u8,
    /// One more than the kernel's place in [`Ring::names`], 0 is none; a copy's [`Direction`].
    pub name: u16,
}

impl What {
    /// As the word.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from_le_bytes([self.kind, self.flags, self.context, self.call, self.name as u8, (self.name >> 8) as u8, 0, 0])
    }

    /// From the word.
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
    /// Writes the text, cut to its length.
    pub fn set(&self, text: &[u8]) {
        for (word, place) in self.0.iter().enumerate() {
            let mut bytes = [0; 8];
            for (byte, from) in bytes.iter_mut().zip(text.iter().skip(word * 8)) {
                *byte = *from;
            }
            place.store(u64::from_le_bytes(bytes), Relaxed);
        }
    }

    /// Whether it is this text, cut to its length.
    #[must_use]
    pub fn is(&self, text: &[u8]) -> bool {
        let mut own = self.0.iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
        let wanted = text.iter().copied().chain(core::iter::repeat(0));
        wanted.take(N * 8).all(|byte| own.next() == Some(byte))
    }
}

/// How often one function of the driver was called.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// So often.
    pub count: AtomicU64,
    /// Nanoseconds on the host in all.
    pub took: AtomicU64,
    /// Its name, with zeroes behind it.
    pub name: Text<{ CALL_LENGTH / 8 }>,
}

/// A kernel's name.
#[repr(C)]
#[derive(Debug)]
pub struct Name {
    /// Of the whole name.
    pub hash: AtomicU64,
    reserved: AtomicU64,
    /// As far as it fits, with zeroes behind it.
    pub text: Text<{ NAME_LENGTH / 8 }>,
}

/// What a ring begins with.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    capacity: AtomicU32,
    /// Records begun so far.
    pub head: AtomicU64,
    /// What to add to `CLOCK_MONOTONIC` of the process to get nanoseconds since 1970, wrapping.
    pub since_1970: AtomicU64,
    /// PID of the process that writes, in its own namespace.
    pub pid: AtomicU32,
    /// How many of [`Ring::calls`] are in use.
    pub calls: AtomicU32,
    /// How many of [`Ring::names`] are in use.
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
    /// What it begins with.
    pub header: Header,
    /// The driver's functions that were called.
    pub calls: [Call; CALLS],
    /// Names of kernels.
    pub names: [Name; NAMES],
    /// The newest records, each at its number modulo [`CAPACITY`].
    pub records: [Record; CAPACITY],
}

/// Size of a ring in bytes.
pub const RING_SIZE: usize = size_of::<Ring>();
/// Size of a region's file with rings, in bytes. They are holes until a process is traced.
pub const FILE_SIZE: u64 = (region::SIZE + SLOTS * RING_SIZE) as u64;
const _: () = assert!(region::SIZE.is_multiple_of(4096) && HEADER_SIZE == 64 && RECORD_SIZE == 80);

/// Where in the file the ring of a slot begins, in bytes.
#[must_use]
pub const fn offset(slot: usize) -> u64 {
    (region::SIZE + slot * RING_SIZE) as u64
}

impl Header {
    /// Whether it is one of this version.
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
    /// Takes the next record. Whoever comes a whole round later takes it again, written or not: nobody waits.
    pub fn take(&self) -> Option<(u64, &Record)> {
        let number = self.header.head.fetch_add(1, Relaxed);
        let record = self.records.get((number % CAPACITY as u64) as usize)?;
        record.sequence.store(0, Relaxed);
        core::sync::atomic::fence(Release);
        Some((number, record))
    }

    /// Says when work ran on the GPU, if its record is still there.
    pub fn ran(&self, number: u64, begin: u64, took: u64) {
        let Some(record) = self.records.get((number % CAPACITY as u64) as usize) else { return };
        if record.sequence.load(Acquire) == number + 1 {
            record.gpu_begin.store(begin, Relaxed);
            record.gpu_took.store(took.saturating_add(1), Release);
        }
    }

    /// The place of a function of the driver, one more than that; 0 if there is none left.
    pub fn call(&self, name: &[u8]) -> u8 {
        let used = self.header.calls.load(Acquire);
        let known = self.calls.iter().take(used as usize).position(|call| call.name.is(name));
        let place = known.or_else(|| {
            // Of two threads that come at once with the same one each gets a place: the reader adds them up.
            let place = take_place(&self.header.calls, CALLS)?;
            self.calls.get(place)?.name.set(name);
            Some(place)
        });
        place.map_or(0, |place| place as u8 + 1)
    }

    /// The place of a kernel's name, one more than that; 0 if there is none left.
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
