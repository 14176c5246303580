//! Virtual memory management.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, sys::*};

use crate::report::Report;
use crate::setup::require;

const MIB: usize = 1 << 20;

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    report.measure();
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let (mut handle, mut granularity) = (0, 0);
    // SAFETY: all-zero is valid for this struct.
    let mut properties = unsafe { std::mem::zeroed::<CUmemAllocationProp>() };
    // SAFETY: out-pointers are valid, or null where that is the question.
    unsafe {
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location;
        for flag in [
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        ] {
            report.code("granularity", cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties, flag));
            report.answer("is", granularity);
        }
        report.code("create 0", cuMemCreate(&raw mut handle, 0, &raw const properties, 0));
        report.code("create 4096", cuMemCreate(&raw mut handle, 4096, &raw const properties, 0));
        report.code("create 4 TiB", cuMemCreate(&raw mut handle, 1 << 42, &raw const properties, 0));
        report.code("create to null", cuMemCreate(null_mut(), 2 * MIB, &raw const properties, 0));
        properties.location.id = 99;
        report.code("create on 99", cuMemCreate(&raw mut handle, 2 * MIB, &raw const properties, 0));
        properties.location.id = 0;
    }
    mapped(report, &properties);
    shareable(report, properties);
}

/// Memory that is mapped twice.
fn mapped(report: &mut Report, properties: &CUmemAllocationProp) {
    let (mut handle, mut address) = (0, 0);
    // SAFETY: out-pointers are valid; ranges are used while they are mapped.
    unsafe {
        report.code("create 64M", cuMemCreate(&raw mut handle, 64 * MIB, properties, 0));
        report.growth("create costs");
        report.code("reserve 4096", cuMemAddressReserve(&raw mut address, 4096, 0, 0, 0));
        report.code("reserve 128M", cuMemAddressReserve(&raw mut address, 128 * MIB, 0, 0, 0));
        report.answer("aligned to 2M", address % (2 * MIB as u64) == 0);
        report.growth("reserve costs");
        report.code("map with an offset", cuMemMap(address, 32 * MIB, 32 * MIB, handle, 0));
        report.code("map a part", cuMemMap(address, 32 * MIB, 0, handle, 0));
        report.code("map elsewhere", cuMemMap(0x1_0000_0000, 64 * MIB, 0, handle, 0));
        report.code("map", cuMemMap(address, 64 * MIB, 0, handle, 0));
        report.code("map over it", cuMemMap(address, 64 * MIB, 0, handle, 0));
        report.code("map a second time", cuMemMap(address + 64 * MIB as u64, 64 * MIB, 0, handle, 0));
        let access = CUmemAccessDesc { location: properties.location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        report.code("access", cuMemSetAccess(address, 128 * MIB, &raw const access, 1));
        report.code("set", cuMemsetD8_v2(address, 9, 16));
        let mut seen = [0_u8; 4];
        report.code("read by the other mapping", cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), address + 64 * MIB as u64, 4));
        report.answer("is", format!("{seen:?}"));
        report.code("cuMemFree of it", cuMemFree_v2(address));
        let (mut base, mut size) = (0, 0);
        report.code("range", cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address + 100));
        report.answer("range is", format!("{} {size}", base == address));
        let mut retained = 0;
        report
            .code("retain", cuMemRetainAllocationHandle(&raw mut retained, std::ptr::with_exposed_provenance_mut(address as usize + 100)));
        report.answer("the same handle", retained == handle);
        report.code("release", cuMemRelease(handle));
        report.code("release", cuMemRelease(retained));
        report.growth("released while mapped");
        report.code("free the addresses while mapped", cuMemAddressFree(address, 128 * MIB));
        report.code("unmap a part", cuMemUnmap(address, 32 * MIB));
        report.code("unmap one", cuMemUnmap(address, 64 * MIB));
        report.growth("one of two unmapped");
        report.code("unmap it again", cuMemUnmap(address, 64 * MIB));
        report.code("unmap the other", cuMemUnmap(address + 64 * MIB as u64, 64 * MIB));
        report.growth("both unmapped");
        report.code("free the wrong addresses", cuMemAddressFree(address, 64 * MIB));
        report.code("free the addresses", cuMemAddressFree(address, 128 * MIB));
        report.code("release of nothing", cuMemRelease(0));
    }
}

/// Memory of the host, and memory that is exported and imported.
fn shareable(report: &mut Report, mut properties: CUmemAllocationProp) {
    let (location, mut handle) = (properties.location, 0);
    // SAFETY: out-pointers are valid.
    unsafe {
        for kind in [CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA] {
            properties.location = CUmemLocation { type_: kind, id: 0 };
            let code = cuMemCreate(&raw mut handle, 2 * MIB, &raw const properties, 0);
            report.code(format!("create at {kind:?}"), code);
            report.growth("costs");
            if code == CUresult::CUDA_SUCCESS {
                report.code("release", cuMemRelease(handle));
            }
        }
        properties.location = location;
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let posix = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let (mut fd, mut imported) = (-1_i32, 0);
        require("create", cuMemCreate(&raw mut handle, 4 * MIB, &raw const properties, 0));
        report.growth("shareable 4M");
        report.code("export", cuMemExportToShareableHandle((&raw mut fd).cast(), handle, posix, 0));
        report.code("import", cuMemImportFromShareableHandle(&raw mut imported, std::ptr::without_provenance_mut(fd as usize), posix));
        report.growth("import in the same process costs");
        libc::close(fd);
        report.code("release", cuMemRelease(handle));
        report.growth("released the first");
        report.code("release", cuMemRelease(imported));
        report.growth("released the import");
    }
}
