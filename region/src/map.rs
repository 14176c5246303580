//! Mapping the two files, and telling the living from the dead.
//!
//! A process owns its slot by an open-file-description lock on one byte of the region. The lock belongs to the open file, and the
//! mapping keeps that file open, so the descriptor can be closed at once: a program that closes all descriptors loses nothing, and
//! the kernel lets go when the last mapping is gone, however the process ended. A forked child holds its parent's mapping and
//! so its parent's slot, exactly as it holds the driver's descriptors and so its parent's device memory.

mod account;

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::limits::{self, LimitsPage};
use crate::region::{self, Region, SLOTS, Slot};
use crate::trace::{self, RING_SIZE, Ring};
pub use account::account;

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A system call failed with this errno.
    System {
        /// Which call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// The limits page is not one.
    Limits(limits::Invalid),
    /// The region is not one.
    Region(region::Invalid),
    /// The file is shorter than it has to be, by its size in bytes.
    Short(u64),
    /// Every slot is held by a living process.
    NoSlot,
    /// There are accounts for as many GPUs as there can be, or somebody who was making one has not finished for a second.
    NoAccount,
}

impl core::fmt::Display for Error {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::System { call, errno } => write!(out, "{call} failed with errno {errno}"),
            Self::Limits(limits::Invalid::Version(found)) => write!(out, "layout version {found}, expected {}", limits::VERSION),
            Self::Region(region::Invalid::Version(found)) => write!(out, "layout version {found}, expected {}", region::VERSION),
            Self::Limits(_) | Self::Region(_) => out.write_str("not a file of vgpu's"),
            Self::Short(size) => write!(out, "only {size} bytes long"),
            Self::NoAccount => out.write_str("no account can be made for a GPU"),
            Self::NoSlot => write!(out, "all {SLOTS} process slots are in use"),
        }
    }
}

fn failed(call: &'static str) -> Error {
    // SAFETY: errno's address is valid for the calling thread.
    Error::System { call, errno: unsafe { *libc::__errno_location() } }
}

/// An open descriptor that is closed on drop.
#[derive(Debug)]
struct File(i32);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and used by nobody after this.
        unsafe { libc::close(self.0) };
    }
}

impl File {
    fn open(path: &CStr, flags: i32) -> Result<Self, Error> {
        // SAFETY: the path is a C string.
        match unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) } {
            -1 => Err(failed("open")),
            descriptor => Ok(Self(descriptor)),
        }
    }

    fn size(&self) -> Result<u64, Error> {
        // SAFETY: fstat fills the structure it is given; an all-zero stat is valid.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            if libc::fstat(self.0, &raw mut stat) != 0 { Err(failed("fstat")) } else { Ok(stat.st_size as u64) }
        }
    }

    fn map<T>(&self, protection: i32) -> Result<NonNull<T>, Error> {
        let size = self.size()?;
        if size < size_of::<T>() as u64 {
            return Err(Error::Short(size));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice, as long as the file is at least.
        let address = unsafe { libc::mmap(core::ptr::null_mut(), size_of::<T>(), protection, libc::MAP_SHARED, self.0, 0) };
        if address == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        NonNull::new(address.cast()).ok_or(Error::Short(size))
    }

    /// Asks for or sets the write lock on a slot's byte. `None` if `command` is refused because somebody else has it.
    fn lock(&self, command: i32, slot: usize) -> Option<libc::flock> {
        self.change_lock(command, libc::F_WRLCK, slot)
    }

    fn change_lock(&self, command: i32, kind: i32, slot: usize) -> Option<libc::flock> {
        // SAFETY: an all-zero flock is valid; the kernel reads and writes only this structure.
        unsafe {
            let mut lock: libc::flock = core::mem::zeroed();
            lock.l_type = kind as _;
            lock.l_whence = libc::SEEK_SET as _;
            lock.l_start = slot as _;
            lock.l_len = 1;
            (libc::fcntl(self.0, command, &raw mut lock) == 0).then_some(lock)
        }
    }
}

/// Maps a limits page, read-only, for as long as the process lives.
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

/// Maps a limits page for the host side, which may store into its atomics.
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

/// Maps a region without taking a slot: for the host side.
///
/// # Errors
/// The file cannot be opened or mapped, or is not a region of this version.
pub fn region(path: &CStr) -> Result<&'static Region, Error> {
    map_region(&File::open(path, libc::O_RDWR)?)
}

fn map_region(file: &File) -> Result<&'static Region, Error> {
    let region = file.map::<Region>(libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: the mapping is never removed, and the region consists of atomics and of padding that nobody reads.
    let region = unsafe { region.as_ref() };
    region.check().map_err(Error::Region)?;
    Ok(region)
}

/// Unmaps what [`region()`] gave.
///
/// # Safety
/// No reference into the region may be used afterwards.
pub unsafe fn unmap(region: &'static Region) {
    // SAFETY: the caller has no more use for the mapping, which is exactly this long.
    unsafe { libc::munmap(core::ptr::from_ref(region).cast_mut().cast(), size_of::<Region>()) };
}

/// Maps the ring of a slot, for the process whose slot it is. `None` where nobody traces the container: there are none in the file.
///
/// # Errors
/// The file cannot be opened or mapped, or there is no memory for what it is to hold.
pub fn ring(path: &CStr, slot: usize) -> Result<Option<&'static Ring>, Error> {
    let file = File::open(path, libc::O_RDWR)?;
    if slot >= SLOTS || file.size()? < trace::FILE_SIZE {
        return Ok(None);
    }
    // Without its pages a ring would end the process at its first write once the file system is full.
    // SAFETY: the call takes no pointers.
    if unsafe { libc::fallocate(file.0, 0, trace::offset(slot) as _, RING_SIZE as _) } != 0 {
        let error = failed("fallocate");
        if !matches!(error, Error::System { errno: libc::EOPNOTSUPP | libc::ENOSYS, .. }) {
            return Err(error);
        }
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping at an address of the kernel's choice, within the file.
    let address = unsafe { libc::mmap(core::ptr::null_mut(), RING_SIZE, protection, libc::MAP_SHARED, file.0, trace::offset(slot) as _) };
    if address == libc::MAP_FAILED {
        return Err(failed("mmap"));
    }
    // SAFETY: the mapping is as long as a ring, is never removed, and a ring consists of atomics and of padding that nobody reads.
    Ok(unsafe { address.cast::<Ring>().as_ref() })
}

/// A process's own view of its container's region.
#[derive(Clone, Copy, Debug)]
pub struct Membership {
    /// The mapped region.
    pub region: &'static Region,
    /// The place of this process's slot.
    pub index: usize,
}

impl Membership {
    /// This process's slot.
    #[must_use]
    pub fn slot(&self) -> &'static Slot {
        // The index came from the loop over `slots`; a wrong one would only mean accounts in the first slot.
        self.region.slots.get(self.index).unwrap_or(&self.region.slots[0])
    }
}

/// Maps the region and takes a slot in it for this process. Slots of the dead are taken over and what they held is given back.
///
/// # Errors
/// The file cannot be used, or [`Error::NoSlot`].
pub fn join(path: &CStr, pid: u32, now: u64) -> Result<Membership, Error> {
    let file = File::open(path, libc::O_RDWR)?;
    let region = map_region(&file)?;
    // A slot of the dead that still has charges is left to `Region::recover`, whose caller knows when the driver is done with
    // that process; only if nothing else is free is it taken over here.
    for take_over in [false, true] {
        for (index, slot) in region.slots.iter().enumerate() {
            let is_charged = || slot.gpus.iter().any(|charge| charge.charge.most() != 0);
            if (is_charged() && !take_over) || file.lock(libc::F_OFD_SETLK, index).is_none() {
                continue;
            }
            // Somebody may have had it for a moment in between, and be dead.
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
            slot.making_context.store(0, Relaxed);
            slot.since.store(now, Relaxed);
            slot.pid.store(pid, Relaxed);
            region.slots_used.fetch_max(index as u32 + 1, AcqRel);
            return Ok(Membership { region, index });
        }
    }
    // SAFETY: nothing of the region was handed out.
    unsafe { unmap(region) };
    Err(Error::NoSlot)
}

/// Tells which slots' processes live, by asking for their locks.
#[derive(Debug)]
pub struct Census(Option<File>);

impl Census {
    /// Opens the region for asking. If that fails, everyone counts as alive.
    #[must_use]
    pub fn open(path: &CStr) -> Self {
        Self(File::open(path, libc::O_RDWR).ok())
    }

    /// Whether the slot's process is certainly gone.
    #[must_use]
    pub fn is_dead(&self, slot: usize) -> bool {
        let lock = self.0.as_ref().and_then(|file| file.lock(libc::F_OFD_GETLK, slot));
        lock.is_some_and(|lock| i32::from(lock.l_type) == libc::F_UNLCK)
    }
}

/// Makes a new region in an empty file that is open for writing.
///
/// # Errors
/// The file cannot be written or sized.
pub fn format(descriptor: i32) -> Result<(), Error> {
    let header = region::header();
    // SAFETY: the buffer is as long as said.
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

/// The slots whose processes live.
pub fn living<'a>(region: &'a Region, census: &'a Census) -> impl Iterator<Item = (usize, &'a Slot)> {
    region.used_slots().filter(|(index, slot)| slot.pid.load(Acquire) != 0 && !census.is_dead(*index))
}
