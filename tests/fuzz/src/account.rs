//! A container's region, which every process of the container can write.

use std::cell::RefCell;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use arbitrary::{Arbitrary, Unstructured};
use tempfile::TempDir;
use vgpu_monitor::account::{Account, Reader};
use vgpu_monitor::trace::alnair;
use vgpu_monitor::trace::chrome::Writer;
use vgpu_monitor::trace::rings::Rings;
use vgpu_region::region::{GpuAccount, GpuCharge, Region, SIZE, SLOTS, Slot};
use vgpu_region::trace::{Call, Header, Name, Ring};
use vgpu_region::{MAX_GPUS, map, trace};

/// What a hostile process does to the file.
#[derive(Arbitrary, Debug)]
enum Change {
    /// Writes a word into the accounts or the slots, at this byte.
    Accounts(u32, u64),
    /// Writes the number of used slots.
    SlotsUsed(u8),
    /// Takes an account for a GPU, with these words of memory.
    Gpu { place: u8, uuid: u8, total: u64, spilled: u64 },
    /// Takes a slot for a process, with these charges on one GPU.
    Slot { place: u8, pid: u32, gpu: u8, charge: u64, parts: u64, spill: u64 },
    /// Writes a word into a slot's trace ring, at this byte of its header or of its first functions.
    Ring(u8, u16, u64),
    /// Writes a word into a slot's trace ring, at any byte.
    RingAnywhere(u8, u32, u64),
    /// Marks a slot's ring as valid, with this number of records and of functions.
    BeginRing { slot: u8, head: Count, pid: u8, calls: u8 },
    /// Names a function of the driver.
    Call { slot: u8, place: u8, count: u64, name: [u8; 12] },
    /// Names a kernel.
    Name { slot: u8, place: u8, name: [u8; 12] },
    /// Completes a record: its number, its owner, its kind, flags and indices, and its figures.
    Record { slot: u8, number: Count, pid: u8, kind: u8, flags: u8, indices: [u8; 3], figures: [u64; 6] },
    /// Cuts the file.
    Cut(u32),
}

/// Number of records.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Count {
    /// Of a ring that was not overwritten often.
    Few(u8),
    /// Any number.
    Any(u64),
}

impl Count {
    fn get(self) -> u64 {
        match self {
            Self::Few(count) => count.into(),
            Self::Any(count) => count,
        }
    }
}

/// Rings of a hostile process that are used, to keep an execution short.
const RINGS: usize = 4;

/// The file, which is formatted again for each input.
struct Host {
    _dir: TempDir,
    path: PathBuf,
    file: File,
    reader: Reader,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::Builder::new().tempdir_in("/dev/shm").expect("a folder in memory");
        let path = dir.path().join("region");
        let file = File::create_new(&path).expect("a new file");
        for slot in (0..SLOTS).step_by(2) {
            lock(&file, slot);
        }
        Self { _dir: dir, path, file, reader: Reader::default() }
    }
}

/// Takes the lock on a slot's byte, with which a slot's process is alive.
fn lock(file: &File, slot: usize) {
    // SAFETY: an all-zero lock is valid, and the kernel only reads it.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
        (lock.l_start, lock.l_len) = (slot as _, 1);
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock), 0, "{}", std::io::Error::last_os_error());
    }
}

/// Reads a damaged region and its trace rings.
pub fn account(data: &[u8]) {
    thread_local! {
        static HOST: RefCell<Host> = RefCell::new(Host::new());
    }
    let mut input = Unstructured::new(data);
    let Ok(changes) = Vec::<Change>::arbitrary(&mut input) else { return };
    HOST.with_borrow_mut(|host| {
        host.file.set_len(0).expect("an empty file");
        map::format(host.file.as_raw_fd()).expect("a new region");
        host.file.set_len(trace::FILE_SIZE).expect("a sparse file");
        for change in &changes {
            apply(&host.file, change);
        }
        if let Ok(account) = host.reader.read(&host.path) {
            check(&account);
        }
        if let Ok(rings) = Rings::open(&host.path, true) {
            read_rings(rings);
        }
    });
}

/// Asserts that an account has what an account may have.
fn check(account: &Account) {
    assert!(account.processes.len() <= SLOTS.div_ceil(2), "processes that are dead");
    assert!(account.gpus.len() <= MAX_GPUS);
    for (index, gpu) in account.gpus.iter().enumerate() {
        assert!(account.gpus[..index].iter().all(|other| other.uuid != gpu.uuid), "a GPU occurs twice");
        let held = account.processes.iter().fold(0_u64, |sum, process| sum.saturating_add(process.charges[index].total));
        assert!(gpu.charged <= held, "more is charged than the processes have");
    }
}

/// Reads the rings. Asserts that traces and logs are well-formed.
fn read_rings(mut rings: Rings) {
    let mut trace = Writer::new(Vec::new()).expect("a trace in memory");
    let mut each = |event| {
        trace.event(&event).expect("a trace in memory");
        if let Some(line) = alnair::timeline(&event) {
            assert!(line.as_bytes().starts_with(alnair::TIMELINE_HEAD) && line.find('\n') == Some(line.len() - 1), "{line:?}");
        }
    };
    rings.drain(false, &mut each);
    rings.stop();
    rings.drain(true, &mut each);
    rings.drain(true, &mut each);
    let metrics = alnair::metrics(&rings.totals(), 1);
    assert!(metrics.as_bytes().starts_with(alnair::METRICS_HEAD) && metrics.lines().count() == 1 + alnair::NAMES.len(), "{metrics:?}");
    let trace = trace.finish().expect("a trace in memory");
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&trace) {
        panic!("the trace is no JSON: {error}: {}", String::from_utf8_lossy(&trace));
    }
}

/// Applies one change.
fn apply(file: &File, change: &Change) {
    let bytes = |at: usize, value: &[u8]| file.write_all_at(value, at as u64).expect("a write to memory");
    let word = |at: usize, value: u64| bytes(at, &value.to_ne_bytes());
    let ring = |slot: u8| trace::offset(usize::from(slot) % RINGS) as usize;
    match *change {
        Change::Accounts(at, value) => word(at as usize % (SIZE - 8), value),
        Change::SlotsUsed(count) => bytes(offset_of!(Region, slots_used), &u32::from(count).to_ne_bytes()),
        Change::Gpu { place, uuid, total, spilled } => {
            let at = offset_of!(Region, gpus) + usize::from(place) % MAX_GPUS * size_of::<GpuAccount>();
            // An account begins with its GPU's UUID, and the word that says that it is complete.
            [u64::from(uuid), 1, 2].iter().enumerate().for_each(|(nth, value)| word(at + 8 * nth, *value));
            word(at + offset_of!(GpuAccount, total), total);
            word(at + offset_of!(GpuAccount, spilled), spilled);
        }
        Change::Slot { place, pid, gpu, charge, parts, spill } => {
            let slot = offset_of!(Region, slots) + usize::from(place) % SLOTS * size_of::<Slot>();
            bytes(slot + offset_of!(Slot, pid), &pid.to_ne_bytes());
            let at = slot + offset_of!(Slot, gpus) + usize::from(gpu) % MAX_GPUS * size_of::<GpuCharge>();
            word(at + offset_of!(GpuCharge, charge), charge);
            word(at + offset_of!(GpuCharge, overhead), parts);
            word(at + offset_of!(GpuCharge, spill), spill);
        }
        Change::Ring(slot, at, value) => word(ring(slot) + usize::from(at), value),
        Change::RingAnywhere(slot, at, value) => word(ring(slot) + at as usize % (trace::RING_SIZE - 8), value),
        Change::BeginRing { slot, head, pid, calls } => {
            word(ring(slot), trace::MAGIC);
            word(ring(slot) + 8, u64::from(trace::VERSION) | (trace::CAPACITY as u64) << 32);
            word(ring(slot) + offset_of!(Header, head), head.get());
            word(ring(slot) + offset_of!(Header, pid), u64::from(pid) | u64::from(calls) << 32);
        }
        Change::Call { slot, place, count, name } => {
            let at = ring(slot) + offset_of!(Ring, calls) + usize::from(place) % trace::CALLS * size_of::<Call>();
            word(at, count);
            bytes(at + offset_of!(Call, name), &name);
        }
        Change::Name { slot, place, name } => {
            let at = ring(slot) + offset_of!(Ring, names) + usize::from(place) % trace::NAMES * size_of::<Name>();
            bytes(at + offset_of!(Name, text), &name);
        }
        Change::Record { slot, number, pid, kind, flags, indices: [context, call, name], figures } => {
            let number = number.get();
            let at = (number % trace::CAPACITY as u64) as usize * trace::RECORD_SIZE;
            let what = u64::from_le_bytes([kind, flags, context, call, name, 0, 0, 0]);
            let [begin, took, place, amount, gpu_begin, gpu_took] = figures;
            let words = [number.wrapping_add(1), begin, took, pid.into(), what, place, amount, gpu_begin, gpu_took];
            bytes(ring(slot) + offset_of!(Ring, records) + at, &words.map(u64::to_ne_bytes).concat());
        }
        Change::Cut(size) => file.set_len(u64::from(size) % trace::FILE_SIZE).expect("a shorter file"),
    }
}
