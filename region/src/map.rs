//! Maps the two files, and tells which processes are alive.
//!
//! A process owns its slot by an open-file-description lock on one byte of the region. The lock belongs to the open file, and the mapping keeps
//! that file open, so the descriptor can be closed at once. A program that closes all descriptors keeps its slot, and the kernel releases the
//! lock with the last mapping, however the process ended. A forked child has its parent's mapping and so its parent's slot, just as it has the
//! driver's descriptors and so its parent's device memory.

mod account;
mod file;

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::limits::LimitsPage;
use crate::region::{self, Region, SLOTS, Slot};
use crate::trace::{self, RING_SIZE, Ring};
pub use account::account;
pub use file::{Error, WITHOUT_WAITING};
use file::{File, failed};

/// Maps a limits page read-only, until the process ends.
///
/// # Errors
/// The file cannot be opened or mapped, or is not a limits page of this version.
pub fn limits(path: &CStr) -> Result<&'static LimitsPage, Error> {
    let page = File::open(path, libc::O_RDONLY)?.map::<LimitsPage>(libc::PROT_READ)?;
    // SAFETY: the mapping is never removed; its plain fields are written once, before the container exists, the others are atomics.
    let page = unsafe { page.as_ref() };
    page.check().map_err(Error::Limits)?;
    Ok(page)
}

/// Maps a limits page read-write, for the host.
///
/// # Errors
/// As for [`limits()`].
pub fn limits_for_change(path: &CStr) -> Result<&'static LimitsPage, Error> {
    let page = File::open(path, libc::O_RDWR)?.map::<LimitsPage>(libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: as in `limits`.
    let page = unsafe { page.as_ref() };
    page.check().map_err(Error::Limits)?;
    Ok(page)
}

/// Maps a region without taking a slot, for the host.
///
/// # Errors
/// The file cannot be opened or mapped, or is not a region of this version.
pub fn region(path: &CStr) -> Result<&'static Region, Error> {
    map_region(&File::open(path, libc::O_RDWR)?)
}

fn map_region(file: &File) -> Result<&'static Region, Error> {
    let region = file.map::<Region>(libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the mapping is never removed, and the region consists of atomics and of padding that is never read.
    let region = unsafe { region.as_ref() };
    region.check().map_err(Error::Region)?;
    Ok(region)
}

/// Unmaps a region of [`region()`].
///
/// # Safety
/// No reference into the region may be used afterwards.
pub unsafe fn unmap(region: &'static Region) {
    // SAFETY: the caller does not use the mapping any more, which is exactly this long.
    unsafe { libc::munmap(core::ptr::from_ref(region).cast_mut().cast(), size_of::<Region>()) };
}

/// Maps the trace ring of a slot, for the process that owns the slot. Returns `None` if the container is not traced: the file has no rings.
///
/// # Errors
/// The file cannot be opened or mapped, or there is no memory for its content.
pub fn ring(path: &CStr, slot: usize) -> Result<Option<&'static Ring>, Error> {
    let file = File::open(path, libc::O_RDWR)?;
    if slot >= SLOTS || file.size()? < trace::FILE_SIZE {
        return Ok(None);
    }
    file.allocate(trace::offset(slot), RING_SIZE)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping at an address of the kernel's choice, within the file.
    let address = unsafe { libc::mmap(core::ptr::null_mut(), RING_SIZE, protection, libc::MAP_SHARED, file.0, trace::offset(slot) as _) };
    if address == libc::MAP_FAILED {
        return Err(failed("mmap"));
    }
    // SAFETY: the mapping is as long as a ring, is never removed, and a ring consists of atomics and of padding that is never read.
    Ok(unsafe { address.cast::<Ring>().as_ref() })
}

/// A process's slot in its container's region.
#[derive(Clone, Copy, Debug)]
pub struct Membership {
    /// The mapped region.
    pub region: &'static Region,
    /// Index of this process's slot.
    pub index: usize,
}

impl Membership {
    /// Returns this process's slot.
    #[must_use]
    pub fn slot(&self) -> &'static Slot {
        // The index is from the loop over `slots`. A wrong one would only charge the first slot.
        self.region.slots.get(self.index).unwrap_or(&self.region.slots[0])
    }
}

/// Maps the region and takes a slot in it for this process. Slots of dead processes are reused, and their memory is released.
///
/// # Errors
/// The file cannot be used, or [`Error::NoSlot`].
pub fn join(path: &CStr, pid: u32, now: u64) -> Result<Membership, Error> {
    let file = File::open(path, libc::O_RDWR)?;
    file.allocate(0, region::SIZE)?;
    let region = map_region(&file)?;
    // A dead process's slot with charges is left to `Region::recover`, whose caller knows when the driver has released the memory. It is
    // taken over here only if no other slot is free.
    for take_over in [false, true] {
        for (index, slot) in region.slots.iter().enumerate() {
            let is_charged = || slot.gpus.iter().any(|charge| charge.charge.most() != 0);
            if (is_charged() && !take_over) || file.lock(libc::F_OFD_SETLK, index).is_none() {
                continue;
            }
            // Another process may have had the slot in between, and be dead.
            let charged = is_charged();
            if charged && !take_over {
                file.change_lock(libc::F_OFD_SETLK, libc::F_UNLCK, index);
                continue;
            }
            for (gpu, charge) in slot.gpus.iter().enumerate() {
                charge.begin_anew();
                if charged {
                    region.recover(gpu, |_, _, _| false);
                }
            }
            for word in [&slot.making_context, &slot.calls, &slot.left] {
                word.store(0, Relaxed);
            }
            slot.since.store(now, Relaxed);
            slot.pid.store(pid, Relaxed);
            region.slots_used.fetch_max(index as u32 + 1, AcqRel);
            return Ok(Membership { region, index });
        }
    }
    // SAFETY: no reference into the region was returned.
    unsafe { unmap(region) };
    Err(Error::NoSlot)
}

/// Tells which slots' processes are alive, by querying their locks.
#[derive(Debug)]
pub struct Census(Option<File>);

impl Census {
    /// Opens the region. If that fails, all processes count as alive.
    #[must_use]
    pub fn open(path: &CStr) -> Self {
        // A query needs no right to write, and an open for writing would break a read lease.
        Self(File::open(path, libc::O_RDONLY).ok())
    }

    /// Queries the region that the caller has open with this descriptor, which need not stay open. If that fails, all processes count as alive.
    #[must_use]
    pub fn of(descriptor: i32) -> Self {
        Self(File::duplicate(descriptor).ok())
    }

    /// Returns true if the slot's process is certainly gone.
    #[must_use]
    pub fn is_dead(&self, slot: usize) -> bool {
        let lock = self.0.as_ref().and_then(|file| file.lock(libc::F_OFD_GETLK, slot));
        lock.is_some_and(|lock| i32::from(lock.l_type) == libc::F_UNLCK)
    }
}

/// Writes a new region into an empty file that is open for writing.
///
/// # Errors
/// The file cannot be written or sized.
pub fn format(descriptor: i32) -> Result<(), Error> {
    let header = region::header();
    // SAFETY: the pointer and the length are the buffer's.
    let written = unsafe { libc::pwrite(descriptor, header.as_ptr().cast(), header.len(), 0) };
    if written != header.len() as isize {
        return Err(failed("pwrite"));
    }
    // SAFETY: the call takes no pointers.
    match unsafe { libc::ftruncate(descriptor, region::SIZE as _) } {
        0 => Ok(()),
        _ => Err(failed("ftruncate")),
    }
}

/// Returns the slots whose processes are alive, with their indices.
pub fn living<'a>(region: &'a Region, census: &'a Census) -> impl Iterator<Item = (usize, &'a Slot)> {
    region.used_slots().filter(|(index, slot)| slot.pid.load(Acquire) != 0 && !census.is_dead(*index))
}
