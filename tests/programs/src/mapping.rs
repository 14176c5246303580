//! Memory by virtual memory management: physical memory of its own, mapped at an address of its own.

use crate::cuda::{check, sys::*};

/// Granularity of physical memory in bytes, on all GPUs that are tested.
pub const GRANULE: usize = 2 << 20;

/// The memory. It has to be given back with [`Mapping::end`].
#[derive(Debug)]
pub struct Mapping {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: usize,
    /// Handle of the physical memory; 0 once it is released.
    pub handle: u64,
}

impl Mapping {
    /// Takes memory of at least `bytes` bytes on a GPU, which may be exported as a file descriptor, as PyTorch's may.
    ///
    /// # Errors
    /// The driver's status. Then nothing is left behind.
    pub fn make(gpu: i32, bytes: usize) -> Result<Self, CUresult> {
        let mut made = Self { address: 0, bytes: bytes.next_multiple_of(GRANULE), handle: 0 };
        let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu };
        // SAFETY: the structures are plain data, for which zero is valid, and all pointers are to local variables.
        unsafe {
            let mut properties: CUmemAllocationProp = std::mem::zeroed();
            properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            properties.location = location;
            let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
            check(cuMemCreate(&raw mut made.handle, made.bytes, &raw const properties, 0))?;
            let mapped = check(cuMemAddressReserve(&raw mut made.address, made.bytes, 0, 0, 0))
                .and_then(|()| check(cuMemMap(made.address, made.bytes, 0, made.handle, 0)))
                .and_then(|()| check(cuMemSetAccess(made.address, made.bytes, &raw const access, 1)));
            match mapped {
                Ok(()) => Ok(made),
                Err(code) => {
                    made.end()?;
                    Err(code)
                }
            }
        }
    }

    /// Releases the handle: the mapping keeps the memory.
    ///
    /// # Errors
    /// The driver's status.
    pub fn release(&mut self) -> Result<(), CUresult> {
        match std::mem::take(&mut self.handle) {
            0 => Ok(()),
            // SAFETY: a handle of this object's.
            handle => check(unsafe { cuMemRelease(handle) }),
        }
    }

    /// Checks that the driver gives the same handle for an address of the mapping, and knows it.
    ///
    /// # Errors
    /// The driver's status, or `CUDA_ERROR_ASSERT`.
    pub fn ask(&self) -> Result<(), CUresult> {
        let mut handle = 0;
        // SAFETY: a mapped address and valid out-pointers; the structure is valid when zero.
        let (types, is_ours) = unsafe {
            let mut properties: CUmemAllocationProp = std::mem::zeroed();
            check(cuMemRetainAllocationHandle(&raw mut handle, std::ptr::with_exposed_provenance_mut(self.address as usize + 4096)))?;
            check(cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle))?;
            check(cuMemRelease(handle))?;
            (properties.requestedHandleTypes, self.handle == 0 || self.handle == handle)
        };
        let is_right = is_ours && types == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        if is_right { Ok(()) } else { Err(CUresult::CUDA_ERROR_ASSERT) }
    }

    /// Exports the memory and imports it again.
    ///
    /// # Errors
    /// The driver's status.
    pub fn share(&self) -> Result<(), CUresult> {
        use std::os::fd::{FromRawFd, OwnedFd};
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let (mut descriptor, mut handle) = (-1_i32, 0);
        // SAFETY: a handle of this object's, and valid out-pointers. The descriptor is this function's to close.
        unsafe {
            check(cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.handle, kind, 0))?;
            let _open = OwnedFd::from_raw_fd(descriptor);
            check(cuMemImportFromShareableHandle(&raw mut handle, std::ptr::with_exposed_provenance_mut(descriptor as usize), kind))?;
            check(cuMemRelease(handle))
        }
    }

    /// Gives everything back. Nothing uses the memory any more.
    ///
    /// # Errors
    /// The driver's status.
    pub fn end(mut self) -> Result<(), CUresult> {
        // SAFETY: this object's own range.
        unsafe {
            if self.address != 0 {
                check(cuMemUnmap(self.address, self.bytes))?;
                check(cuMemAddressFree(self.address, self.bytes))?;
            }
        }
        self.release()
    }
}
