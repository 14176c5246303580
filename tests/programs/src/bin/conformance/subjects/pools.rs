//! Stream-ordered memory.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, sys::*};

use crate::report::Report;
use crate::setup::require;

const MIB: usize = 1 << 20;

fn attribute(pool: CUmemoryPool, which: CUmemPool_attribute) -> u64 {
    let mut value = 0_u64;
    // SAFETY: the attributes queried here have at most 64 bits, and the value is zeroed.
    require("cuMemPoolGetAttribute", unsafe { cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()) });
    value
}

fn state(pool: CUmemoryPool) -> String {
    use CUmemPool_attribute::*;
    let values = [
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ];
    format!("reserved, high, used, high {:?}", values.map(|which| attribute(pool, which)))
}

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(CUresult::CUDA_SUCCESS));
    report.measure();
    let (mut stream, mut pool, mut current) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the out-pointers are valid; memory and streams are used while they live.
    unsafe {
        require("stream", cuStreamCreate(&raw mut stream, 1));
        report.code("default pool", cuDeviceGetDefaultMemPool(&raw mut pool, 0));
        report.code("current pool", cuDeviceGetMemPool(&raw mut current, 0));
        report.answer("is the default", pool == current);
        report.code("destroying the default", cuMemPoolDestroy(pool));
        report.answer("threshold", attribute(pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
        report.answer("fresh", state(pool));
        report.growth("a pool costs");
        let sizes = [4096, 4096, MIB, 2 * MIB, 32 * MIB, 32 * MIB, 32 * MIB + 512, 64 * MIB, 100 * MIB, 1024 * MIB, 3 * MIB];
        let mut addresses = Vec::new();
        for size in sizes {
            let mut address = 0;
            report.code(format!("alloc {size}"), cuMemAllocAsync(&raw mut address, size, stream));
            report.answer("then", state(pool));
            report.growth("costs");
            addresses.push(address);
        }
        for &address in &addresses {
            report.code("free", cuMemFreeAsync(address, stream));
        }
        report.answer("all freed", state(pool));
        report.growth("before a synchronize");
        require("synchronize", cuStreamSynchronize(stream));
        report.answer("synchronized", state(pool));
        report.growth("after a synchronize");
    }
    refusals(report, pool, stream);
    retained(report, pool, stream);
    own_pools(report, stream);
}

/// Sizes that cannot be allocated, addresses that cannot be freed, and addresses freed by the other API.
fn refusals(report: &mut Report, pool: CUmemoryPool, stream: CUstream) {
    // SAFETY: the out-pointers are valid, or null where that is the question.
    unsafe {
        let mut address = 0x1234;
        report.code("alloc 0", cuMemAllocAsync(&raw mut address, 0, stream));
        report.answer("the pointer is then", address);
        address = 0x1234;
        report.code("alloc 4 TiB", cuMemAllocAsync(&raw mut address, 1 << 42, stream));
        report.answer("the pointer is then", address);
        report.code("alloc to null", cuMemAllocAsync(null_mut(), 4096, stream));
        report.code("free of nothing", cuMemFreeAsync(0x1234_5678_9000, stream));
        report.code("free 0", cuMemFreeAsync(0, stream));
        report.code("alloc", cuMemAllocAsync(&raw mut address, 10 * MIB, stream));
        report.code("cuMemFree of it", cuMemFree_v2(address));
        report.answer("then", state(pool));
        require("cuMemAlloc", cuMemAlloc_v2(&raw mut address, 4 * MIB));
        report.growth("a linear one");
        report.code("cuMemFreeAsync of it", cuMemFreeAsync(address, stream));
        require("synchronize", cuStreamSynchronize(stream));
        report.growth("freed and synchronized");
    }
}

/// Memory that a pool retains below its release threshold.
fn retained(report: &mut Report, pool: CUmemoryPool, stream: CUstream) {
    // SAFETY: the out-pointers are valid; each address is freed once.
    unsafe {
        let mut threshold = 64_u64 * MIB as u64;
        let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        report.code("threshold 64M", cuMemPoolSetAttribute(pool, which, (&raw mut threshold).cast()));
        let mut kept = [0; 3];
        for address in &mut kept {
            require("alloc", cuMemAllocAsync(address, 40 * MIB, stream));
        }
        report.answer("three of 40M", state(pool));
        kept.iter().for_each(|&address| require("free", cuMemFreeAsync(address, stream)));
        require("synchronize", cuStreamSynchronize(stream));
        report.answer("freed and synchronized", state(pool));
        report.growth("kept below the threshold");
        report.code("trim to 40M", cuMemPoolTrimTo(pool, 40 * MIB));
        report.answer("trimmed", state(pool));
        report.code("trim to 0", cuMemPoolTrimTo(pool, 0));
        report.answer("trimmed", state(pool));
        threshold = 0;
        require("threshold", cuMemPoolSetAttribute(pool, which, (&raw mut threshold).cast()));
    }
}

fn own_pools(report: &mut Report, stream: CUstream) {
    // SAFETY: all-zero is valid for this struct; otherwise as in `ask`.
    unsafe {
        let mut properties = std::mem::zeroed::<CUmemPoolProps>();
        let mut pool = null_mut();
        report.code("create with nothing said", cuMemPoolCreate(&raw mut pool, &raw const properties));
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = 99;
        report.code("create on 99", cuMemPoolCreate(&raw mut pool, &raw const properties));
        properties.location.id = 0;
        properties.maxSize = 100 * MIB;
        report.code("create with at most 100M", cuMemPoolCreate(&raw mut pool, &raw const properties));
        report.growth("costs");
        let mut addresses = Vec::new();
        for _ in 0..6 {
            let mut address = 0;
            let code = cuMemAllocFromPoolAsync(&raw mut address, 30 * MIB, pool, stream);
            report.code("alloc 30M", code);
            report.answer("then", state(pool));
            if code == CUresult::CUDA_SUCCESS {
                addresses.push(address);
            }
        }
        report.growth("costs");
        report.code("destroy with live memory", cuMemPoolDestroy(pool));
        report.growth("gives back");
        addresses.iter().for_each(|&address| require("free", cuMemFreeAsync(address, stream)));
        require("synchronize", cuStreamSynchronize(stream));
        report.growth("freed");
        properties.maxSize = 0;
        require("create", cuMemPoolCreate(&raw mut pool, &raw const properties));
        report.code("make it current", cuDeviceSetMemPool(0, pool));
        let (mut current, mut address) = (null_mut(), 0);
        require("current", cuDeviceGetMemPool(&raw mut current, 0));
        report.answer("it is", current == pool);
        require("alloc", cuMemAllocAsync(&raw mut address, MIB, stream));
        report.answer("used", state(pool));
        require("free", cuMemFreeAsync(address, stream));
        require("synchronize", cuStreamSynchronize(stream));
        report.code("destroy", cuMemPoolDestroy(pool));
        require("current", cuDeviceGetMemPool(&raw mut current, 0));
        report.answer("it is no longer", current != pool);
        report.growth("in the end");
    }
}
