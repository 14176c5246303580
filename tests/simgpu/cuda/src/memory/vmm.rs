//! Virtual memory management: physical memory by handles, mapped where the program wants it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::FromRawFd;

use cudarc::driver::sys::{CUmemAllocationProp, CUresult};
use simgpu_device::Part;

use super::{GRANULE, Kind};
use crate::driver::{Driver, World, driver, world};
use crate::ffi::{Answer, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, get, put};
use crate::handles::{Handles, as_pointer};

const ON_DEVICE: u32 = 1;

/// Physical memory. It lives while a handle or a mapping does.
pub struct Physical {
    properties: CUmemAllocationProp,
    size: u64,
    /// Bytes charged to the GPU: none for memory of the host, or of another process.
    charged: u64,
    handles: u64,
    mappings: u64,
    /// Where its bytes are, so that several mappings show the same.
    backing: u64,
    /// Descriptors that it was exported by.
    exports: Vec<Descriptor>,
}

/// A descriptor, and the file that it was.
#[derive(Clone, Copy)]
struct Descriptor {
    number: i32,
    file: u64,
}

impl Descriptor {
    fn of(number: i32) -> Descriptor {
        // SAFETY: all-zero is valid for this structure of numbers, which the call fills.
        unsafe {
            let mut about = std::mem::zeroed::<libc::stat>();
            let known = libc::fstat(number, &raw mut about) == 0;
            Descriptor { number, file: if known { about.st_ino } else { 0 } }
        }
    }

    fn is_open(self) -> bool {
        self.file != 0 && Descriptor::of(self.number).file == self.file
    }
}

/// Memory that nothing but a descriptor keeps: on the GPU, and NVML shows it for nobody.
struct Kept {
    by: Vec<Descriptor>,
    ordinal: i32,
    bytes: u64,
}

// SAFETY: the only pointer in it is the Windows one among the properties, which nobody follows.
unsafe impl Send for Physical {}

/// Physical memory by handle, and reserved address ranges by start.
#[derive(Default)]
pub struct Vmm {
    pub live: Handles<Physical>,
    reserved: BTreeMap<u64, u64>,
    kept: Vec<Kept>,
}

/// What a shareable descriptor says of the memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shared {
    magic: u64,
    /// Whose it is: the process, and its handle there.
    owner: u64,
    handle: u64,
    size: u64,
    properties: CUmemAllocationProp,
}

const MAGIC: u64 = 0x5349_4d56_4d4d_0001;

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// New shared pages, which can be mapped a second time.
fn back(size: u64) -> Answer<u64> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(address.expose_provenance() as u64) }
}

/// Shows a part of the backing at an address of a reserved range.
fn show(at: u64, backing: u64, size: u64) -> Answer {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: an old size of 0 makes a second mapping of shared pages; the target lies in a range that the caller checked.
    let shown = unsafe { libc::mremap(pointer(backing), 0, size as usize, flags, pointer(at)) };
    if shown == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

/// Makes a range of reserved addresses inaccessible.
fn hide(at: u64, size: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies in one that this module reserved.
    unsafe { libc::mmap(pointer(at), size as usize, libc::PROT_NONE, flags, -1, 0) };
}

fn in_granules(size: u64) -> bool {
    size > 0 && size.is_multiple_of(GRANULE)
}

impl World {
    fn make_physical(&mut self, driver: &Driver, size: u64, properties: CUmemAllocationProp, charge: bool) -> Answer<usize> {
        let on_device = properties.location.type_ as u32 == ON_DEVICE;
        let charged = if on_device && charge { size } else { 0 };
        if on_device {
            driver.charge(properties.location.id, charged, Part::Visible)?;
        }
        let backing = back(size)?;
        Ok(self.memory.vmm.live.add(Physical { properties, size, charged, handles: 1, mappings: 0, backing, exports: Vec::new() }))
    }

    fn drop_physical(&mut self, driver: &Driver, handle: usize) -> Answer {
        let physical = self.memory.vmm.live.get(as_pointer::<()>(handle))?;
        if physical.handles > 0 || physical.mappings > 0 {
            return Ok(());
        }
        let gone = self.memory.vmm.live.remove(as_pointer::<()>(handle))?;
        let ordinal = gone.properties.location.id;
        driver.release(ordinal, gone.charged, Part::Visible);
        if gone.exports.iter().any(|descriptor| descriptor.is_open()) && driver.charge(ordinal, gone.charged, Part::Hidden).is_ok() {
            self.memory.vmm.kept.push(Kept { by: gone.exports, ordinal, bytes: gone.charged });
        }
        // SAFETY: the backing is this module's own and no handle or mapping refers to it any more.
        unsafe { libc::munmap(pointer(gone.backing), gone.size as usize) };
        Ok(())
    }

    /// Frees what descriptors kept that are closed by now.
    pub fn free_closed(&mut self, driver: &Driver) {
        self.memory.vmm.kept.retain(|kept| {
            let open = kept.by.iter().any(|descriptor| descriptor.is_open());
            if !open {
                driver.release(kept.ordinal, kept.bytes, Part::Hidden);
            }
            open
        });
    }

    /// One mapping more, of an array.
    pub fn add_mapping(&mut self, handle: u64) -> Answer {
        self.physical(handle)?.mappings += 1;
        Ok(())
    }

    /// One less.
    pub fn drop_mapping(&mut self, driver: &Driver, handle: usize) -> Answer {
        self.memory.vmm.live.get_mut(as_pointer::<()>(handle))?.mappings -= 1;
        self.drop_physical(driver, handle)
    }

    fn physical(&mut self, handle: u64) -> Answer<&mut Physical> {
        let found = self.memory.vmm.live.get_mut(as_pointer::<()>(handle as usize)).map_err(|_| INVALID_VALUE)?;
        if found.handles == 0 { Err(INVALID_VALUE) } else { Ok(found) }
    }

    fn mapped(&self, address: u64, size: u64) -> Answer<Vec<u64>> {
        let mut at = address;
        let mut starts = Vec::new();
        while at < address + size {
            let found = self.memory.at(at).filter(|found| matches!(found.kind, Kind::Mapped(_))).ok_or(INVALID_VALUE)?;
            starts.push(at);
            at += found.size;
        }
        if at == address + size { Ok(starts) } else { Err(INVALID_VALUE) }
    }
}

fn check_location(properties: &CUmemAllocationProp) -> Answer {
    match properties.location.type_ as u32 {
        _ if properties.type_ as u32 != 1 => Err(INVALID_VALUE),
        ON_DEVICE => driver()?.physical(properties.location.id).map(|_| ()),
        2..=4 => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    fn cuMemGetAllocationGranularity(out: *mut usize, properties: *const CUmemAllocationProp, flag: u32) {
        driver()?;
        check_location(&get(properties)?)?;
        if flag > 1 {
            return Err(INVALID_VALUE);
        }
        put(out, GRANULE as usize)
    }

    fn cuMemCreate(out: *mut u64, size: usize, properties: *const CUmemAllocationProp, flags: u64) {
        let driver = driver()?;
        let properties = get(properties)?;
        if out.is_null() || flags != 0 || !in_granules(size as u64) {
            return Err(INVALID_VALUE);
        }
        check_location(&properties)?;
        let handle = world()?.make_physical(driver, size as u64, properties, true)?;
        put(out, handle as u64)
    }

    fn cuMemRelease(handle: u64) {
        let driver = driver()?;
        let mut world = world()?;
        world.physical(handle)?.handles -= 1;
        world.drop_physical(driver, handle as usize)
    }

    fn cuMemRetainAllocationHandle(out: *mut u64, address: *mut c_void) {
        let mut world = world()?;
        let found = world.memory.around(address.expose_provenance() as u64).map(|(_, found)| found.kind.clone());
        let Some(Kind::Mapped(handle)) = found else { return Err(INVALID_VALUE) };
        world.memory.vmm.live.get_mut(as_pointer::<()>(handle))?.handles += 1;
        put(out, handle as u64)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: *mut CUmemAllocationProp, handle: u64) {
        let properties = world()?.physical(handle)?.properties;
        put(out, properties)
    }

    fn cuMemAddressReserve(out: *mut u64, size: usize, alignment: usize, _wanted: u64, flags: u64) {
        driver()?;
        let alignment = alignment.max(GRANULE as usize);
        if out.is_null() || flags != 0 || !in_granules(size as u64) || !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size + alignment, libc::PROT_NONE, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let (start, length) = (start.expose_provenance(), size + alignment);
        let aligned = start.next_multiple_of(alignment);
        let behind = aligned + size;
        // SAFETY: what is cut off are the ends of the mapping that was just made.
        unsafe {
            if aligned > start { libc::munmap(pointer(start as u64), aligned - start); }
            if start + length > behind { libc::munmap(pointer(behind as u64), start + length - behind); }
        }
        world()?.memory.vmm.reserved.insert(aligned as u64, size as u64);
        put(out, aligned as u64)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        driver()?;
        let mut world = world()?;
        let busy = world.memory.starts_in(address, size as u64);
        if world.memory.vmm.reserved.get(&address) != Some(&(size as u64)) || busy {
            return Err(INVALID_VALUE);
        }
        world.memory.vmm.reserved.remove(&address);
        // SAFETY: the range is one that `cuMemAddressReserve` made, and nothing is mapped in it.
        unsafe { libc::munmap(pointer(address), size) };
        Ok(())
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        driver()?;
        let mut world = world()?;
        let length = size as u64;
        let reserved = world.memory.vmm.reserved.range(..=address).next_back();
        let fits = reserved.is_some_and(|(&start, &reserved)| address + length <= start + reserved);
        let busy = world.memory.starts_in(address, length) || world.memory.around(address).is_some();
        let physical = world.physical(handle)?;
        if flags != 0 || !fits || busy || !in_granules(length) {
            return Err(INVALID_VALUE);
        }
        if offset != 0 || length != physical.size {
            return Err(crate::ffi::NOT_SUPPORTED);
        }
        show(address, physical.backing, length)?;
        physical.mappings += 1;
        let ordinal = physical.properties.location.id;
        world.memory.add(address, length, ordinal, 0, Kind::Mapped(handle as usize));
        Ok(())
    }

    fn cuMemUnmap(address: u64, size: usize) {
        let driver = driver()?;
        let mut world = world()?;
        let reserved = world.memory.vmm.reserved.range(..=address).next_back();
        if !world.memory.starts_in(address, size as u64)
            && reserved.is_some_and(|(&start, &length)| address + size as u64 <= start + length)
            && world.memory.around(address).is_none()
        {
            return Ok(());
        }
        for start in world.mapped(address, size as u64)? {
            let Some(gone) = world.memory.remove(start) else { continue };
            hide(start, gone.size);
            if let Kind::Mapped(handle) = gone.kind {
                world.drop_mapping(driver, handle)?;
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(address: u64, size: usize, _descriptors: *const c_void, _count: usize) {
        driver()?;
        world()?.mapped(address, size as u64).map(|_| ())
    }

    fn cuMemGetAccess(flags: *mut u64, _location: *const c_void, address: u64) {
        let world = world()?;
        world.memory.around(address).filter(|(_, found)| matches!(found.kind, Kind::Mapped(_))).ok_or(INVALID_VALUE)?;
        put(flags, 3)
    }

    fn cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: u32, flags: u64) {
        driver()?;
        let mut world = world()?;
        let physical = world.physical(handle)?;
        if out.is_null() || kind != 1 || flags != 0 || physical.properties.requestedHandleTypes.0 & 1 == 0 {
            return Err(INVALID_VALUE);
        }
        let shared = Shared { magic: MAGIC, owner: u64::from(std::process::id()), handle, size: physical.size, properties: physical.properties };
        // SAFETY: the name is a C string; what is written is as long as said.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_memfd_create, c"simgpu-shareable".as_ptr(), libc::MFD_CLOEXEC) as i32;
            if fd < 0 || libc::write(fd, (&raw const shared).cast(), size_of::<Shared>()) != size_of::<Shared>() as isize {
                return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
            }
            fd
        };
        physical.exports.push(Descriptor::of(fd));
        put(out.cast::<i32>(), fd)
    }

    fn cuMemImportFromShareableHandle(out: *mut u64, descriptor: *mut c_void, kind: u32) {
        let driver = driver()?;
        if out.is_null() || kind != 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: borrows the program's descriptor; it is not closed. All-zero is a valid value to read into.
        let (fd, mut shared) = unsafe {
            let file = std::fs::File::from_raw_fd(descriptor.expose_provenance() as i32);
            (std::mem::ManuallyDrop::new(file), std::mem::MaybeUninit::<Shared>::zeroed().assume_init())
        };
        // SAFETY: reads as many bytes as there are in the struct of numbers.
        let read = unsafe { libc::pread(std::os::fd::AsRawFd::as_raw_fd(&*fd), (&raw mut shared).cast(), size_of::<Shared>(), 0) };
        if read != size_of::<Shared>() as isize || shared.magic != MAGIC {
            return Err(INVALID_HANDLE);
        }
        let mut world = world()?;
        if shared.owner == u64::from(std::process::id())
            && let Ok(own) = world.memory.vmm.live.get_mut(as_pointer::<()>(shared.handle as usize))
        {
            own.handles += 1;
            return put(out, shared.handle);
        }
        let handle = world.make_physical(driver, shared.size, shared.properties, false)?;
        put(out, handle as u64)
    }
}
