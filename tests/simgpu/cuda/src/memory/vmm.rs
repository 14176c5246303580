//! Virtual memory management: physical memory with handles, mapped at addresses that the program reserves.

use std::ffi::c_void;
use std::os::fd::FromRawFd;

use cudarc::driver::sys::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUresult};
use simgpu_device::Visibility;

use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, get, put};
use crate::handles::as_pointer;
use crate::objects::{Descriptor, ExportedMemory, GRANULE, Kind, Physical};

const ON_DEVICE: u32 = 1;

/// Contents of a shareable descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shareable {
    magic: u64,
    /// PID of the exporter; `handle` is its handle there.
    owner: u64,
    handle: u64,
    size: u64,
    properties: CUmemAllocationProp,
}

const MAGIC: u64 = 0x5349_4d56_4d4d_0001;

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Allocates shared pages that can be mapped several times.
fn map_backing(size: u64) -> CudaResult<u64> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(address.expose_provenance() as u64) }
}

/// Maps backing pages at an address of a reserved range.
fn map_view(at: u64, backing: u64, size: u64) -> CudaResult {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: an old size of 0 creates a second mapping of shared pages; the target is in a range that the caller checked.
    let shown = unsafe { libc::mremap(pointer(backing), 0, size as usize, flags, pointer(at)) };
    if shown == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

/// Makes part of a reserved range inaccessible.
fn unmap_view(at: u64, size: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range is part of one that this module reserved.
    unsafe { libc::mmap(pointer(at), size as usize, libc::PROT_NONE, flags, -1, 0) };
}

fn is_granule_multiple(size: u64) -> bool {
    size > 0 && size.is_multiple_of(GRANULE)
}

impl State {
    fn create_physical(&mut self, driver: &Driver, size: u64, properties: CUmemAllocationProp, charge: bool) -> CudaResult<usize> {
        let on_device = properties.location.type_ as u32 == ON_DEVICE;
        let charged = if on_device && charge { size } else { 0 };
        if on_device {
            driver.charge(properties.location.id, charged, Visibility::Visible)?;
        }
        let backing = map_backing(size)?;
        Ok(self.memory.vmm.live.add(Physical { properties, size, charged, handles: 1, mappings: 0, backing, exports: Vec::new() }))
    }

    fn release_if_unused(&mut self, driver: &Driver, handle: usize) -> CudaResult {
        let physical = self.memory.vmm.live.get(as_pointer::<()>(handle))?;
        if physical.handles > 0 || physical.mappings > 0 {
            return Ok(());
        }
        let gone = self.memory.vmm.live.remove(as_pointer::<()>(handle))?;
        let ordinal = gone.properties.location.id;
        driver.release(ordinal, gone.charged, Visibility::Visible);
        if gone.exports.iter().any(|descriptor| descriptor.is_open()) && driver.charge(ordinal, gone.charged, Visibility::Hidden).is_ok() {
            self.memory.vmm.exported.push(ExportedMemory { descriptors: gone.exports, ordinal, bytes: gone.charged });
        }
        // SAFETY: this module allocated the backing, and no handle or mapping refers to it.
        unsafe { libc::munmap(pointer(gone.backing), gone.size as usize) };
        Ok(())
    }

    /// Frees exported memory whose descriptors are all closed.
    pub fn free_closed_exports(&mut self, driver: &Driver) {
        self.memory.vmm.exported.retain(|exported| {
            let open = exported.descriptors.iter().any(|descriptor| descriptor.is_open());
            if !open {
                driver.release(exported.ordinal, exported.bytes, Visibility::Hidden);
            }
            open
        });
    }

    /// Counts a mapping into an array.
    pub fn add_mapping(&mut self, handle: u64) -> CudaResult {
        self.physical(handle)?.mappings += 1;
        Ok(())
    }

    /// Removes a mapping and frees the memory if it was the last reference.
    pub fn drop_mapping(&mut self, driver: &Driver, handle: usize) -> CudaResult {
        self.memory.vmm.live.get_mut(as_pointer::<()>(handle))?.mappings -= 1;
        self.release_if_unused(driver, handle)
    }

    fn physical(&mut self, handle: u64) -> CudaResult<&mut Physical> {
        let found = self.memory.vmm.live.get_mut(as_pointer::<()>(handle as usize)).map_err(|_| INVALID_VALUE)?;
        if found.handles == 0 { Err(INVALID_VALUE) } else { Ok(found) }
    }

    fn mappings_in(&self, address: u64, size: u64) -> CudaResult<Vec<u64>> {
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

fn check_location(properties: &CUmemAllocationProp) -> CudaResult {
    match properties.location.type_ as u32 {
        _ if properties.type_ as u32 != 1 => Err(INVALID_VALUE),
        ON_DEVICE => driver()?.gpu_index(properties.location.id).map(|_| ()),
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
        if out.is_null() || flags != 0 || !is_granule_multiple(size as u64) {
            return Err(INVALID_VALUE);
        }
        check_location(&properties)?;
        let handle = state()?.create_physical(driver, size as u64, properties, true)?;
        put(out, handle as u64)
    }

    fn cuMemRelease(handle: u64) {
        let driver = driver()?;
        let mut state = state()?;
        state.physical(handle)?.handles -= 1;
        state.release_if_unused(driver, handle as usize)
    }

    fn cuMemRetainAllocationHandle(out: *mut u64, address: *mut c_void) {
        let mut state = state()?;
        let found = state.memory.containing(address.expose_provenance() as u64).map(|(_, found)| found.kind.clone());
        let Some(Kind::Mapped(handle)) = found else { return Err(INVALID_VALUE) };
        state.memory.vmm.live.get_mut(as_pointer::<()>(handle))?.handles += 1;
        put(out, handle as u64)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: *mut CUmemAllocationProp, handle: u64) {
        let properties = state()?.physical(handle)?.properties;
        put(out, properties)
    }

    fn cuMemAddressReserve(out: *mut u64, size: usize, alignment: usize, _wanted: u64, flags: u64) {
        driver()?;
        let alignment = alignment.max(GRANULE as usize);
        if out.is_null() || flags != 0 || !is_granule_multiple(size as u64) || !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new inaccessible mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size + alignment, libc::PROT_NONE, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let (start, length) = (start.expose_provenance(), size + alignment);
        let aligned = start.next_multiple_of(alignment);
        let behind = aligned + size;
        // SAFETY: these are the ends of the mapping that was just created.
        unsafe {
            if aligned > start { libc::munmap(pointer(start as u64), aligned - start); }
            if start + length > behind { libc::munmap(pointer(behind as u64), start + length - behind); }
        }
        state()?.memory.vmm.reserved.insert(aligned as u64, size as u64);
        put(out, aligned as u64)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        driver()?;
        let mut state = state()?;
        let busy = state.memory.any_start_in(address, size as u64);
        if state.memory.vmm.reserved.get(&address) != Some(&(size as u64)) || busy {
            return Err(INVALID_VALUE);
        }
        state.memory.vmm.reserved.remove(&address);
        // SAFETY: `cuMemAddressReserve` created the range, and nothing is mapped in it.
        unsafe { libc::munmap(pointer(address), size) };
        Ok(())
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        driver()?;
        let mut state = state()?;
        let length = size as u64;
        let reserved = state.memory.vmm.reserved.range(..=address).next_back();
        let fits = reserved.is_some_and(|(&start, &reserved)| address + length <= start + reserved);
        let busy = state.memory.any_start_in(address, length) || state.memory.containing(address).is_some();
        let physical = state.physical(handle)?;
        if flags != 0 || !fits || busy || !is_granule_multiple(length) {
            return Err(INVALID_VALUE);
        }
        if offset != 0 || length != physical.size {
            return Err(crate::ffi::NOT_SUPPORTED);
        }
        map_view(address, physical.backing, length)?;
        physical.mappings += 1;
        let ordinal = physical.properties.location.id;
        state.memory.add(address, length, ordinal, 0, Kind::Mapped(handle as usize));
        Ok(())
    }

    fn cuMemUnmap(address: u64, size: usize) {
        let driver = driver()?;
        let mut state = state()?;
        let reserved = state.memory.vmm.reserved.range(..=address).next_back();
        if !state.memory.any_start_in(address, size as u64)
            && reserved.is_some_and(|(&start, &length)| address + size as u64 <= start + length)
            && state.memory.containing(address).is_none()
        {
            return Ok(());
        }
        for start in state.mappings_in(address, size as u64)? {
            let Some(gone) = state.memory.remove(start) else { continue };
            unmap_view(start, gone.size);
            state.memory.vmm.access.retain(|&(mapping, _), _| mapping != start);
            if let Kind::Mapped(handle) = gone.kind {
                state.drop_mapping(driver, handle)?;
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(address: u64, size: usize, descriptors: *const CUmemAccessDesc, count: usize) {
        driver()?;
        let mut state = state()?;
        for start in state.mappings_in(address, size as u64)? {
            for number in 0..count {
                let descriptor = get(descriptors.wrapping_add(number))?;
                state.memory.vmm.access.insert((start, descriptor.location.id), descriptor.flags as u64);
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, address: u64) {
        let state = state()?;
        let found = state.memory.containing(address).filter(|(_, found)| matches!(found.kind, Kind::Mapped(_)));
        let (start, _) = found.ok_or(INVALID_VALUE)?;
        put(flags, state.memory.vmm.access.get(&(start, get(location)?.id)).copied().unwrap_or(0))
    }

    fn cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: u32, flags: u64) {
        driver()?;
        let mut state = state()?;
        let physical = state.physical(handle)?;
        if out.is_null() || kind != 1 || flags != 0 || physical.properties.requestedHandleTypes.0 & 1 == 0 {
            return Err(INVALID_VALUE);
        }
        let owner = u64::from(std::process::id());
        let shared = Shareable { magic: MAGIC, owner, handle, size: physical.size, properties: physical.properties };
        // SAFETY: the name is a C string; `shared` has the size given.
        let fd = unsafe {
            let fd = libc::syscall(libc::SYS_memfd_create, c"simgpu-shareable".as_ptr(), libc::MFD_CLOEXEC) as i32;
            if fd < 0 || libc::write(fd, (&raw const shared).cast(), size_of::<Shareable>()) != size_of::<Shareable>() as isize {
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
        // SAFETY: borrows the program's descriptor without closing it; all-zero is a valid `Shareable`.
        let (fd, mut shared) = unsafe {
            let file = std::fs::File::from_raw_fd(descriptor.expose_provenance() as i32);
            (std::mem::ManuallyDrop::new(file), std::mem::MaybeUninit::<Shareable>::zeroed().assume_init())
        };
        // SAFETY: reads at most the size of `shared`, for which every bit pattern that this module writes is valid.
        let read = unsafe { libc::pread(std::os::fd::AsRawFd::as_raw_fd(&*fd), (&raw mut shared).cast(), size_of::<Shareable>(), 0) };
        if read != size_of::<Shareable>() as isize || shared.magic != MAGIC {
            return Err(INVALID_HANDLE);
        }
        let mut state = state()?;
        if shared.owner == u64::from(std::process::id())
            && let Ok(own) = state.memory.vmm.live.get_mut(as_pointer::<()>(shared.handle as usize))
        {
            own.handles += 1;
            return put(out, shared.handle);
        }
        let handle = state.create_physical(driver, shared.size, shared.properties, false)?;
        put(out, handle as u64)
    }
}
