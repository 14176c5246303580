//! Reads a container's accounting region from outside.
//!
//! The tenant can write and truncate the file at any time. It is therefore copied and never mapped, as touching a truncated page raises
//! SIGBUS. Every figure is the tenant's claim, and none is used as an index or waited for.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use vgpu_region::ledger::PAGE;
use vgpu_region::map::Census;
use vgpu_region::region::{self, Region, SLOTS, Slot};
use vgpu_region::uuid::Uuid;

use crate::shared_file;

/// Resources that a container's processes claim to hold and to have used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// One entry for each GPU that the container has used, in order of first use.
    pub gpus: Vec<GpuAccount>,
    /// Live processes.
    pub processes: Vec<Process>,
}

/// Account of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuAccount {
    /// UUID of the GPU.
    pub uuid: Uuid,
    /// Device memory charged to the container's live processes, in bytes.
    pub charged: u64,
    /// Number of requests refused by the memory limit.
    pub refused: u64,
    /// Time of the first refusal in nanoseconds since 1970. 0 if there was none.
    pub first_refusal: u64,
    /// Bytes that the live processes have spilled to the host.
    pub spilled: u64,
    /// Bytes of `charged` that the live processes have moved to the host.
    pub moved_out: u64,
    /// Moves to the host.
    pub moves_out: Moves,
    /// Moves back to the GPU.
    pub moves_in: Moves,
    /// Charged GPU time in nanoseconds.
    pub used: u64,
    /// Time for which launches were delayed, summed over threads, in nanoseconds.
    pub waited: u64,
    /// Number of batches of launches.
    pub activity: u64,
}

/// Moves of the container's memory in one direction since it started, also by processes that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// Number of moves.
    pub count: u64,
    /// Memory that they moved, in bytes.
    pub bytes: u64,
    /// Time that they took, in nanoseconds; that of moves back with the wait for room.
    pub took_ns: u64,
}

impl From<&region::Moves> for Moves {
    fn from(moves: &region::Moves) -> Self {
        let [count, bytes, took_ns] = [&moves.count, &moves.bytes, &moves.took].map(|figure| figure.load(Relaxed));
        Self { count, bytes, took_ns }
    }
}

/// Live process with a slot in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// PID in the process's own namespace.
    pub pid: u32,
    /// Time when the process took its slot, in nanoseconds since 1970.
    pub since: u64,
    /// Whether the process is making a context whose cost is not yet known.
    pub making_context: bool,
    /// Memory charged on each of [`Account::gpus`].
    pub charges: Vec<Charge>,
}

/// Memory charged to one process on one GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Device memory, held or being allocated.
    pub total: u64,
    /// Part of `total` for contexts, modules and stacks.
    pub overhead: u64,
    /// Part of `total` for managed memory, which NVML does not list by process.
    pub managed: u64,
}

/// Reason why a region cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file was truncated to this number of bytes.
    #[error("the region is truncated to {0} bytes")]
    Truncated(u64),
    /// A process of the container holds a lease on the file, and reading would have to wait for it.
    #[error("a process of the container holds a lease on the region")]
    Leased,
    /// The header was overwritten, or has another version.
    #[error("the region's header is damaged")]
    Header,
    /// Its mode, which is 0666 at first, no longer lets everybody read it.
    #[error("the region's permissions were changed")]
    Closed,
    /// The container's processes hold so many locks on the file that the question which of its slots are in use takes too long.
    #[error("the region has too many file locks")]
    Locked,
    /// There is no file: its file system was mounted in another mount namespace.
    #[error("the region is not visible here: expected the mount namespace of the container engine")]
    Absent,
    /// The file cannot be read.
    #[error("the region cannot be read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            _ if shared_file::is_leased(&error) => Self::Leased,
            ErrorKind::NotFound => Self::Absent,
            _ => Self::Io(error),
        }
    }
}

impl Unreadable {
    /// Returns whether the container's processes made it so: they can truncate and overwrite the file, take leases and locks on it, and
    /// change its mode.
    #[must_use]
    pub fn is_tampered(&self) -> bool {
        match self {
            Self::Truncated(_) | Self::Header | Self::Leased | Self::Closed | Self::Locked => true,
            Self::Absent | Self::Io(_) => false,
        }
    }
}

/// Accounts that are read at first. Most containers have one GPU, and the accounts are taken in order.
const FIRST_ACCOUNTS: usize = 2;
/// Size of the region up to the end of these accounts, in bytes.
const FIRST_SIZE: usize = offset_of!(Region, gpus) + FIRST_ACCOUNTS * size_of::<region::GpuAccount>();

/// Longest CPU time for asking which slots are in use. The kernel goes through all locks on the file for each question, and a tenant may
/// take any number. All slots take 1 ms without them.
const MAX_CENSUS: Duration = Duration::from_millis(10);
/// Slots that are asked about between two looks at the CPU time.
const SLOTS_BETWEEN_LOOKS: usize = 8;

/// Returns the CPU time of the calling thread. Unlike the time of day, it does not pass while others have the processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns whether a region's mode keeps others from reading it, which only its owner can have set.
fn is_closed(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o004 == 0)
}

/// Buffer for reading one region after the other.
#[derive(Debug)]
pub struct Reader(Box<Region>);

impl Default for Reader {
    fn default() -> Self {
        let layout = std::alloc::Layout::new::<Region>();
        // SAFETY: the layout is that of a region, which is not zero-sized.
        let region = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Region>();
        if region.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: the memory was allocated with the layout that a box uses, and zeroes are valid for the atomics and integers of a region.
        Self(unsafe { Box::from_raw(region) })
    }
}

impl Reader {
    /// Reads the region at `path`.
    ///
    /// # Errors
    /// The region is damaged, or cannot be read.
    pub fn read(&mut self, path: &Path) -> Result<Account, Unreadable> {
        let file = shared_file::open(path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied if is_closed(path) => Unreadable::Closed,
            _ => error.into(),
        })?;
        self.read_file(&file)
    }

    /// Reads an open region.
    ///
    /// # Errors
    /// The region is damaged, or cannot be read.
    pub fn read_file(&mut self, file: &File) -> Result<Account, Unreadable> {
        let size = file.metadata()?.len();
        if size < region::SIZE as u64 {
            return Err(Unreadable::Truncated(size));
        }
        self.fill(file, 0, FIRST_SIZE)?;
        self.0.check().map_err(|_| Unreadable::Header)?;
        let start = offset_of!(Region, slots);
        if self.0.gpus.get(FIRST_ACCOUNTS - 1).is_some_and(region::GpuAccount::is_free) {
            // Other regions were read into the buffer before.
            self.bytes()[FIRST_SIZE..start].fill(0);
        } else {
            self.fill(file, FIRST_SIZE, start - FIRST_SIZE)?;
        }
        let used = (self.0.slots_used.load(Relaxed) as usize).min(SLOTS);
        if used == 0 {
            return Ok(self.account(&[]));
        }
        self.fill(file, start, used * size_of::<Slot>())?;
        let living = self.living(&Census::of(file.as_raw_fd()))?;
        Ok(self.account(&living))
    }

    /// Returns the indices of the slots whose processes are alive.
    fn living(&self, census: &Census) -> Result<Vec<usize>, Unreadable> {
        let (begin, mut found) = (cpu_time(), Vec::new());
        for (index, slot) in self.0.used_slots() {
            if index % SLOTS_BETWEEN_LOOKS == 0 && cpu_time().saturating_sub(begin) > MAX_CENSUS {
                return Err(Unreadable::Locked);
            }
            if slot.pid.load(Relaxed) != 0 && !census.is_dead(index) {
                found.push(index);
            }
        }
        Ok(found)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `self` owns the region, the length is its size, and any bytes are valid for its atomics and integers.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self.0).cast::<u8>(), size_of::<Region>()) }
    }

    fn fill(&mut self, file: &File, at: usize, count: usize) -> Result<(), Unreadable> {
        let range = self.bytes().get_mut(at..at + count).ok_or(Unreadable::Header)?;
        file.read_exact_at(range, at as u64).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Unreadable::Truncated(file.metadata().map_or(0, |found| found.len())),
            _ => Unreadable::Io(error),
        })
    }

    /// Returns the figures in the buffer. `living` are the indices of the slots whose processes are alive.
    fn account(&self, living: &[usize]) -> Account {
        let living: Vec<&Slot> = living.iter().filter_map(|&index| self.0.slots.get(index)).collect();
        // The next process to allocate takes what dead ones held out of the totals. Until then they are in there.
        let held = |total: u64, pages: &dyn Fn(&Slot) -> u64| {
            let sum = living.iter().fold(0_u64, |sum, slot| sum.saturating_add(pages(slot)));
            total.min(sum.saturating_mul(PAGE))
        };
        let mut entries: Vec<(usize, GpuAccount)> = Vec::new();
        for (index, account) in self.0.gpus.iter().enumerate() {
            let Some(uuid) = account.uuid().filter(|uuid| entries.iter().all(|(_, known)| known.uuid != *uuid)) else { continue };
            let gpu = GpuAccount {
                uuid,
                charged: held(account.total.bytes(), &|slot| slot.gpus.get(index).map_or(0, |charge| charge.charge.most())),
                refused: account.refused.load(Relaxed),
                first_refusal: account.first_refusal.load(Relaxed),
                spilled: held(account.spilled.bytes(), &|slot| slot.gpus.get(index).map_or(0, |charge| charge.spill.most())),
                moved_out: held(account.total.bytes(), &|slot| slot.gpus.get(index).map_or(0, |charge| charge.out.load(Relaxed).into())),
                moves_out: (&account.moves_out).into(),
                moves_in: (&account.moves_in).into(),
                used: account.budget.used.load(Relaxed),
                waited: account.budget.waited.load(Relaxed),
                activity: account.budget.activity.load(Relaxed),
            };
            entries.push((index, gpu));
        }
        let process = |slot: &&Slot| {
            let charge = |&(index, _): &(usize, GpuAccount)| {
                slot.gpus.get(index).map_or_else(Charge::default, |charge| Charge {
                    total: charge.charge.most().saturating_mul(PAGE),
                    overhead: u64::from(charge.overhead.load(Relaxed)) * PAGE,
                    managed: u64::from(charge.managed.load(Relaxed)) * PAGE,
                })
            };
            Process {
                pid: slot.pid.load(Relaxed),
                since: slot.since.load(Relaxed),
                making_context: slot.making_context.load(Relaxed) != 0,
                charges: entries.iter().map(charge).collect(),
            }
        };
        let processes = living.iter().map(process).collect();
        Account { gpus: entries.into_iter().map(|(_, gpu)| gpu).collect(), processes }
    }
}

#[cfg(test)]
mod tests;
