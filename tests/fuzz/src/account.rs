//! A container's region, which every process of the container can write.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use arbitrary::{Arbitrary, Unstructured};
use vgpu_monitor::account::Reader;
use vgpu_monitor::trace::chrome::Writer;
use vgpu_monitor::trace::rings::Rings;
use vgpu_region::region::{SIZE, SLOTS};
use vgpu_region::{map, trace};

/// What a hostile process does to the file.
#[derive(Arbitrary, Debug)]
enum Change {
    /// Writes a word into the accounts or the slots, at this byte.
    Accounts(u32, u64),
    /// Writes the number of used slots.
    SlotsUsed(u8),
    /// Writes a word into a slot's trace ring, at this byte of its header or of its first records.
    Ring(u8, u16, u64),
    /// Writes a word into a slot's trace ring, at any byte.
    RingAnywhere(u8, u32, u64),
    /// Marks a slot's ring as valid, with this number of records.
    BeginRing(u8, u64),
    /// Completes a record: its number, kind and flags.
    Record(u8, u16, u64),
    /// Cuts the file.
    Cut(u32),
}

/// Rings of a hostile process that are used, to keep an execution short.
const RINGS: usize = 4;

/// Reads a damaged region and its trace rings.
pub fn account(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(changes) = Vec::<Change>::arbitrary(&mut input) else { return };
    let dir = tempfile::Builder::new().tempdir_in("/dev/shm").expect("a folder in memory");
    let path = dir.path().join("region");
    let file = File::create_new(&path).expect("a new file");
    map::format(file.as_raw_fd()).expect("a new region");
    file.set_len(trace::FILE_SIZE).expect("a sparse file");
    for change in &changes {
        apply(&file, change);
    }
    let _ = Reader::default().read(&path);
    let Ok(mut rings) = Rings::open(&path, true) else { return };
    let mut trace = Writer::new(std::io::sink()).expect("an empty trace");
    for is_last in [false, true] {
        rings.drain(is_last, |event| trace.event(&event).expect("a trace that is discarded"));
    }
    let _ = rings.totals();
    let _ = rings.has_pending();
    rings.stop();
}

/// Applies one change.
fn apply(file: &File, change: &Change) {
    let word = |at: u64, value: u64| file.write_all_at(&value.to_ne_bytes(), at).expect("a write to memory");
    let ring = |slot: u8| trace::offset(usize::from(slot) % RINGS);
    match *change {
        Change::Accounts(at, value) => word(u64::from(at) % (SIZE as u64 - 8), value),
        Change::SlotsUsed(count) => {
            let at = std::mem::offset_of!(vgpu_region::region::Region, slots_used) as u64;
            file.write_all_at(&u32::from(count).min(SLOTS as u32).to_ne_bytes(), at).expect("a write to memory");
        }
        Change::Ring(slot, at, value) => word(ring(slot) + u64::from(at), value),
        Change::RingAnywhere(slot, at, value) => word(ring(slot) + u64::from(at) % (trace::RING_SIZE as u64 - 8), value),
        Change::BeginRing(slot, head) => {
            word(ring(slot), trace::MAGIC);
            word(ring(slot) + 8, u64::from(trace::VERSION) | (trace::CAPACITY as u64) << 32);
            word(ring(slot) + std::mem::offset_of!(trace::Header, head) as u64, head);
        }
        Change::Record(slot, number, what) => {
            let at = ring(slot) + std::mem::offset_of!(trace::Ring, records) as u64;
            let at = at + u64::from(number) % trace::CAPACITY as u64 * trace::RECORD_SIZE as u64;
            word(at, u64::from(number) + 1);
            word(at + 32, what);
        }
        Change::Cut(size) => file.set_len(u64::from(size)).expect("a shorter file"),
    }
}
