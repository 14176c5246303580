//! Reading a container's accounting region from outside.
//!
//! The tenant can write the file and cut it short at any time, so it is never mapped here: touching a page that is no longer in the
//! file would end this process with SIGBUS. It is copied instead, every figure in it is taken as the tenant's own claim, and
//! nothing in it is used as an index or waited for.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::ledger::PAGE;
use vgpu_region::map::{self, Census};
use vgpu_region::region::{Region, SLOTS, Slot};
use vgpu_region::uuid::Uuid;

/// What a container's processes say that they hold and used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// For each GPU that any of them has met, in that order.
    pub gpus: Vec<GpuAccount>,
    /// Those that live.
    pub processes: Vec<Process>,
}

/// One GPU's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuAccount {
    /// Which GPU.
    pub uuid: Uuid,
    /// Device memory charged to the container, in bytes.
    pub charged: u64,
    /// Requests that the memory limit has refused.
    pub refused: u64,
    /// When the first refusal was, in nanoseconds since 1970; 0 is never.
    pub first_refusal: u64,
    /// Bytes spilled to the host.
    pub spilled: u64,
    /// GPU time charged, in nanoseconds.
    pub used: u64,
    /// Time that launches were held back, summed over threads, in nanoseconds.
    pub waited: u64,
    /// Counts batches of launches.
    pub activity: u64,
}

/// A living process that has taken a place in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID in its own namespace.
    pub pid: u32,
    /// When it came, in nanoseconds since 1970.
    pub since: u64,
    /// Whether it is making a context whose cost is not known yet.
    pub making_context: bool,
    /// What it holds on each of [`Account::gpus`].
    pub charges: Vec<Charge>,
}

/// What one process holds on one GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Device memory: held, and being allocated.
    pub most: u64,
    /// Of it: contexts, modules, stacks.
    pub overhead: u64,
    /// Of it: managed memory, which NVML does not list by process.
    pub managed: u64,
}

/// Why a region cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file is shorter than it was made.
    #[error("the region has been cut to {0} bytes")]
    Short(u64),
    /// Its header was overwritten, or is of another version.
    #[error("the region's header is damaged")]
    Header,
    /// It cannot be read at all.
    #[error("the region cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Memory for one region after the other.
#[derive(Debug)]
pub struct Reader(Box<Region>);

impl Default for Reader {
    fn default() -> Self {
        let layout = std::alloc::Layout::new::<Region>();
        // SAFETY: the layout is the region's own, which is not empty.
        let place = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Region>();
        if place.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: allocated as a box would; a region consists of atomics and integers, for which zeroes are valid.
        Self(unsafe { Box::from_raw(place) })
    }
}

impl Reader {
    /// Reads the region at `path`.
    ///
    /// # Errors
    /// It was damaged, or cannot be read.
    pub fn read(&mut self, path: &Path) -> Result<Account, Unreadable> {
        let file = File::open(path)?;
        let start = offset_of!(Region, slots);
        self.fill(&file, 0, start)?;
        self.0.check().map_err(|_| Unreadable::Header)?;
        let used = (self.0.slots_used.load(Relaxed) as usize).min(SLOTS);
        self.fill(&file, start, used * size_of::<Slot>())?;
        let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
        Ok(self.account(&Census::open(&name)))
    }

    fn fill(&mut self, file: &File, at: usize, count: usize) -> Result<(), Unreadable> {
        // SAFETY: the region is ours alone, as long as said, and any bytes are valid in it: it is atomics and integers throughout.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut *self.0).cast::<u8>(), size_of::<Region>()) };
        let place = bytes.get_mut(at..at + count).ok_or(Unreadable::Header)?;
        file.read_exact_at(place, at as u64).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Unreadable::Short(file.metadata().map_or(0, |found| found.len())),
            _ => Unreadable::Io(error),
        })
    }

    fn account(&self, census: &Census) -> Account {
        let mut places: Vec<(usize, GpuAccount)> = Vec::new();
        for (place, account) in self.0.gpus.iter().enumerate() {
            let Some(uuid) = account.uuid().filter(|uuid| places.iter().all(|(_, known)| known.uuid != *uuid)) else { continue };
            let gpu = GpuAccount {
                uuid,
                charged: account.total.bytes(),
                refused: account.refused.load(Relaxed),
                first_refusal: account.first_refusal.load(Relaxed),
                spilled: account.spilled.bytes(),
                used: account.budget.used.load(Relaxed),
                waited: account.budget.waited.load(Relaxed),
                activity: account.budget.activity.load(Relaxed),
            };
            places.push((place, gpu));
        }
        let process = |(_, slot): (usize, &Slot)| {
            let charge = |&(place, _): &(usize, GpuAccount)| {
                slot.gpus.get(place).map_or_else(Charge::default, |charge| Charge {
                    most: charge.charge.most().saturating_mul(PAGE),
                    overhead: u64::from(charge.overhead.load(Relaxed)) * PAGE,
                    managed: u64::from(charge.managed.load(Relaxed)) * PAGE,
                })
            };
            Process {
                pid: slot.pid.load(Relaxed),
                since: slot.since.load(Relaxed),
                making_context: slot.making_context.load(Relaxed) != 0,
                charges: places.iter().map(charge).collect(),
            }
        };
        let processes = map::living(&self.0, census).map(process).collect();
        Account { gpus: places.into_iter().map(|(_, gpu)| gpu).collect(), processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;

    const GPU: Uuid = Uuid([7; 16]);

    fn made(folder: &Path) -> (std::path::PathBuf, map::Membership) {
        let path = folder.join("region");
        map::format(File::create(&path).unwrap().as_raw_fd()).unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        (path, map::join(&name, 42, 1000).unwrap())
    }

    #[test]
    fn what_a_process_charges_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (path, member) = made(dir.path());
        let place = member.region.gpu(GPU).unwrap();
        let (account, charge) = (&member.region.gpus[place], &member.slot().gpus[place]);
        charge.charge.reserve(&account.total, 10, 100).unwrap();
        charge.overhead.store(4, Relaxed);
        account.refused.store(3, Relaxed);
        account.budget.used.store(5_000, Relaxed);
        let read = Reader::default().read(&path).unwrap();
        let gpu = read.gpus[0];
        assert_eq!((gpu.uuid, gpu.charged, gpu.refused, gpu.used), (GPU, 10 * PAGE, 3, 5_000));
        assert_eq!(read.processes.len(), 1);
        let process = &read.processes[0];
        assert_eq!((process.pid, process.since), (42, 1000));
        assert_eq!(process.charges, [Charge { most: 10 * PAGE, overhead: 4 * PAGE, managed: 0 }]);
        // SAFETY: nothing of the region is used after this.
        unsafe { map::unmap(member.region) };
        assert!(Reader::default().read(&path).unwrap().processes.is_empty(), "whoever is gone is not counted");
    }

    #[test]
    fn a_region_cut_short_is_told_and_nothing_worse() {
        let dir = tempfile::tempdir().unwrap();
        let (path, member) = made(dir.path());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut reader = Reader::default();
        for size in [offset_of!(Region, slots) as u64, 4096, 8, 0] {
            file.set_len(size).unwrap();
            let error = reader.read(&path).unwrap_err();
            assert!(matches!(error, Unreadable::Short(found) if found == size), "{error}");
        }
        // SAFETY: nothing of the region is used after this.
        unsafe { map::unmap(member.region) };
    }

    #[test]
    fn garbage_is_read_without_harm() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _member) = made(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().skip(24).for_each(|byte| *byte = 0xff);
        std::fs::write(&path, &bytes).unwrap();
        let read = Reader::default().read(&path).unwrap();
        assert!(read.gpus.len() <= vgpu_region::MAX_GPUS && read.processes.len() <= SLOTS);
        bytes[0] = 0;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(Reader::default().read(&path), Err(Unreadable::Header)));
    }
}
