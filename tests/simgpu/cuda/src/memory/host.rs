//! Pinned host memory, allocated or registered.

use std::ffi::c_void;

use cudarc::driver::sys::CUresult;

use crate::driver::state;
use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, put};
use crate::objects::Kind;

const PAGE: usize = 4096;
/// All pinned memory is mapped for the GPU.
const MAPPED: u32 = 2;

fn allocate(out: *mut *mut c_void, size: usize, flags: u32) -> CudaResult {
    let mut state = state()?;
    let (context, ordinal) = state.current_gpu()?;
    put(out, std::ptr::null_mut())?;
    if flags & !0xf != 0 {
        return Err(INVALID_VALUE);
    }
    if size == 0 {
        return Ok(());
    }
    let length = size.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, kind, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    state.memory.add(
        address.expose_provenance() as u64,
        size as u64,
        ordinal,
        context,
        Kind::Host { flags: flags | MAPPED, registered: false },
    );
    put(out, address)
}

fn register(pointer: *mut c_void, size: usize, flags: u32) -> CudaResult {
    let mut state = state()?;
    let (context, ordinal) = state.current_gpu()?;
    if pointer.is_null() || size == 0 {
        return Err(INVALID_VALUE);
    }
    let address = pointer.expose_provenance() as u64;
    if state.memory.containing(address).is_some() {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    state.memory.add(address, size as u64, ordinal, context, Kind::Host { flags, registered: true });
    Ok(())
}

fn device_pointer(out: *mut u64, pointer: *mut c_void, flags: u32) -> CudaResult {
    let state = state()?;
    let address = pointer.expose_provenance() as u64;
    let found = state.memory.containing(address).filter(|(_, found)| matches!(found.kind, Kind::Host { .. }));
    if flags != 0 || found.is_none() {
        return Err(INVALID_VALUE);
    }
    put(out, address)
}

api! {
    fn cuMemAllocHost_v2(out: *mut *mut c_void, size: usize) { allocate(out, size, 0) }
    fn cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: u32) { allocate(out, size, flags) }

    fn cuMemFreeHost(pointer: *mut c_void) {
        let mut state = state()?;
        if pointer.is_null() {
            return Ok(());
        }
        let address = pointer.expose_provenance() as u64;
        let found = state.memory.at(address).filter(|found| matches!(found.kind, Kind::Host { registered: false, .. })).cloned();
        let length = (found.ok_or(INVALID_VALUE)?.size as usize).next_multiple_of(PAGE);
        state.memory.remove(address);
        // SAFETY: this module created the mapping, and the program releases it.
        unsafe { libc::munmap(pointer, length) };
        Ok(())
    }

    fn cuMemHostRegister(pointer: *mut c_void, size: usize, flags: u32) { register(pointer, size, flags) }
    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: u32) { register(pointer, size, flags) }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        let mut state = state()?;
        let address = pointer.expose_provenance() as u64;
        let found = state.memory.at(address).filter(|found| matches!(found.kind, Kind::Host { registered: true, .. }));
        found.ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        state.memory.remove(address);
        Ok(())
    }

    fn cuMemHostGetDevicePointer(out: *mut u64, pointer: *mut c_void, flags: u32) { device_pointer(out, pointer, flags) }
    fn cuMemHostGetDevicePointer_v2(out: *mut u64, pointer: *mut c_void, flags: u32) { device_pointer(out, pointer, flags) }

    fn cuMemHostGetFlags(out: *mut u32, pointer: *mut c_void) {
        let state = state()?;
        match state.memory.containing(pointer.expose_provenance() as u64).map(|(_, found)| &found.kind) {
            Some(Kind::Host { flags, .. }) => put(out, *flags),
            _ => Err(INVALID_VALUE),
        }
    }
}
