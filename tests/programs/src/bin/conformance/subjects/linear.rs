//! `cuMemAlloc` and related calls.

use std::ffi::c_void;
use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, sys};

use crate::report::Report;
use crate::setup::require;

pub fn ask(report: &mut Report) {
    require("start", cuda::start(0).err().unwrap_or(sys::CUresult::CUDA_SUCCESS));
    report.measure();
    sizes(report);
    sharing(report);
    refusals(report);
    pitched(report);
    managed(report);
    copies(report);
    host(report);
    pointers(report);
    ipc(report);
}

fn alloc(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the out-pointer is valid.
    require("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) });
    address
}

fn free(address: u64) {
    // SAFETY: the address was allocated.
    require("cuMemFree", unsafe { sys::cuMemFree_v2(address) });
}

fn sizes(report: &mut Report) {
    const MIB: usize = 1 << 20;
    for bytes in [1, 512, 4096, MIB - 1, MIB, MIB + 1, MIB + 4096, 2 * MIB, 2 * MIB + 512, 4 * MIB + 1, 33 * MIB] {
        let addresses = [alloc(bytes), alloc(bytes)];
        report.growth(format!("two of {bytes}"));
        report.answer(format!("{bytes} is aligned to"), 1_u64 << addresses[0].trailing_zeros().min(21));
        let (mut base, mut size) = (0, 0);
        // SAFETY: both out-pointers are valid.
        report.code("range of its middle", unsafe {
            sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, addresses[1] + bytes as u64 / 2)
        });
        report.answer("range is its own", base == addresses[1] && size == bytes);
        free(addresses[0]);
        report.growth("one freed");
        free(addresses[1]);
        report.growth("both freed");
    }
}

fn sharing(report: &mut Report) {
    let first = alloc(4096);
    let offsets = [512, 1, 65536, 1 << 20, 700_000, 200_000].map(|bytes| alloc(bytes) - first);
    report.answer("offsets in one block", format!("{offsets:?}"));
    report.growth("a mixture");
    offsets.iter().for_each(|offset| free(first + offset));
    free(first);
    report.growth("all freed");
    let many = (0..3000).map(|_| alloc(4096)).collect::<Vec<_>>();
    report.growth("3000 of 4096");
    many.iter().step_by(2).for_each(|&address| free(address));
    report.growth("every other freed");
    let again = (0..1500).map(|_| alloc(4096)).collect::<Vec<_>>();
    report.growth("1500 more");
    many.iter().skip(1).step_by(2).chain(&again).for_each(|&address| free(address));
    report.growth("all freed");
}

fn refusals(report: &mut Report) {
    let mut address = 0x1234;
    // SAFETY: out-pointers are valid, or null where that is the question.
    unsafe {
        report.code("4 TiB", sys::cuMemAlloc_v2(&raw mut address, 1 << 42));
        report.answer("the pointer is then", address);
        address = 0x1234;
        report.code("the largest size", sys::cuMemAlloc_v2(&raw mut address, usize::MAX));
        report.answer("the pointer is then", address);
        address = 0x1234;
        report.code("0 bytes", sys::cuMemAlloc_v2(&raw mut address, 0));
        report.answer("the pointer is then", address);
        report.code("to null", sys::cuMemAlloc_v2(null_mut(), 4096));
        report.code("free 0", sys::cuMemFree_v2(0));
        report.code("free of nothing", sys::cuMemFree_v2(0x1234_5678_9000));
        let inside = alloc(4096);
        report.code("free of a middle", sys::cuMemFree_v2(inside + 512));
        report.code("free", sys::cuMemFree_v2(inside));
        report.code("free twice", sys::cuMemFree_v2(inside));
        report.code("info to null", sys::cuMemGetInfo_v2(null_mut(), null_mut()));
        let (mut free, mut total) = (0, 0);
        report.code("info, only free", sys::cuMemGetInfo_v2(&raw mut free, null_mut()));
        report.code("info, only total", sys::cuMemGetInfo_v2(null_mut(), &raw mut total));
        let mut device_total = 0;
        sys::cuDeviceTotalMem_v2(&raw mut device_total, 0);
        report.answer("info's total is the device's", total == device_total);
        let (mut base, mut size) = (0, 0);
        report.code("range of nothing", sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, 0x1234_5678_9000));
        let linear = alloc(100);
        report.code("range, only base", sys::cuMemGetAddressRange_v2(&raw mut base, null_mut(), linear));
        report.code("range, only size", sys::cuMemGetAddressRange_v2(null_mut(), &raw mut size, linear));
        report.code("range behind the size asked", sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, linear + 100));
        report.code("range behind the rounded size", sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, linear + 512));
        crate::setup::require("free", sys::cuMemFree_v2(linear));
        report.growth("after refusals");
    }
}

fn pitched(report: &mut Report) {
    for (width, height, element) in [(1, 1, 4), (1000, 1000, 4), (1000, 10_000, 16), (512, 10, 8), (513, 10, 8), (100_000, 40, 4)] {
        let (mut address, mut pitch) = (0, 0);
        // SAFETY: both out-pointers are valid.
        report.code(format!("pitch {width}x{height} by {element}"), unsafe {
            sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, width, height, element)
        });
        report.answer("pitch", pitch);
        report.growth("costs");
        free(address);
        report.growth("freed");
    }
    let (mut address, mut pitch) = (0, 0);
    // SAFETY: as above.
    unsafe {
        report.code("pitch of elements of 3", sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 100, 100, 3));
        report.code("pitch of no width", sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 0, 100, 4));
        report.code("pitch of no height", sys::cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 100, 0, 4));
        report.code("pitch to null", sys::cuMemAllocPitch_v2(&raw mut address, null_mut(), 100, 100, 4));
    }
}

fn managed(report: &mut Report) {
    let mut address = 0;
    // SAFETY: the out-pointers are valid; the memory is used while it lives.
    unsafe {
        report.code("managed 64M", sys::cuMemAllocManaged(&raw mut address, 64 << 20, 1));
        report.growth("managed costs the process");
        report.code("set by the GPU", sys::cuMemsetD8_v2(address, 7, 64 << 20));
        require("synchronize", sys::cuCtxSynchronize());
        report.growth("used by the GPU costs the process");
        report.answer("the host reads", std::ptr::with_exposed_provenance::<u8>(address as usize + 12345).read_volatile());
        free(address);
        report.growth("freed");
        report.code("managed of 0", sys::cuMemAllocManaged(&raw mut address, 0, 1));
        report.code("managed with flags 0", sys::cuMemAllocManaged(&raw mut address, 4096, 0));
        report.code("managed with flags 2", sys::cuMemAllocManaged(&raw mut address, 4096, 2));
        free(address);
        report.code("managed to null", sys::cuMemAllocManaged(null_mut(), 4096, 1));
    }
}

fn copies(report: &mut Report) {
    let address = alloc(8192);
    let (source, mut target) = ([5_u8; 4096], [0_u8; 4096]);
    // SAFETY: the host's ranges have the given lengths; invalid GPU ranges are the question.
    unsafe {
        report.code("HtoD", sys::cuMemcpyHtoD_v2(address, source.as_ptr().cast(), 4096));
        report.code("DtoD", sys::cuMemcpyDtoD_v2(address + 4096, address, 4096));
        report.code("DtoH", sys::cuMemcpyDtoH_v2(target.as_mut_ptr().cast(), address + 4096, 4096));
        report.answer("came back", target == source);
        report.code("set D32", sys::cuMemsetD32_v2(address, 0x0102_0304, 16));
        report.code("DtoH", sys::cuMemcpyDtoH_v2(target.as_mut_ptr().cast(), address, 64));
        report.answer("pattern", format!("{:?}", &target[..8]));
        report.code("unaligned set D32", sys::cuMemsetD32_v2(address + 2, 1, 16));
        report.code("set of 0", sys::cuMemsetD8_v2(address, 1, 0));
        report.code("HtoD of 0", sys::cuMemcpyHtoD_v2(address, source.as_ptr().cast(), 0));
        report.code("HtoD past the end", sys::cuMemcpyHtoD_v2(address + 8192 - 16, source.as_ptr().cast(), 4096));
        report.code("HtoD to nothing", sys::cuMemcpyHtoD_v2(0x1234_5678_9000, source.as_ptr().cast(), 16));
        report.code("HtoD to null", sys::cuMemcpyHtoD_v2(0, source.as_ptr().cast(), 16));
        report.code("HtoD from null", sys::cuMemcpyHtoD_v2(address, std::ptr::null(), 16));
        report.code("cuMemcpy up", sys::cuMemcpy(address, source.as_ptr().expose_provenance() as u64, 64));
        report.code("cuMemcpy down", sys::cuMemcpy(target.as_mut_ptr().expose_provenance() as u64, address, 64));
        report.answer("came back", target[..64] == source[..64]);
    }
    free(address);
}

fn host(report: &mut Report) {
    let (mut pointer, mut address, mut flags) = (null_mut(), 0, 0);
    // SAFETY: the out-pointers are valid; the memory is used while it lives.
    unsafe {
        report.code("host 16M", sys::cuMemHostAlloc(&raw mut pointer, 16 << 20, 1));
        report.growth("host memory costs");
        report.code("its device pointer", sys::cuMemHostGetDevicePointer_v2(&raw mut address, pointer, 0));
        report.answer("is the same", address == pointer.expose_provenance() as u64);
        report.code("its flags", sys::cuMemHostGetFlags(&raw mut flags, pointer));
        report.answer("flags", flags);
        report.code("cuMemFree of it", sys::cuMemFree_v2(address));
        report.code("cuMemFreeHost", sys::cuMemFreeHost(pointer));
        report.code("cuMemFreeHost of null", sys::cuMemFreeHost(null_mut()));
        report.code("host of 0", sys::cuMemHostAlloc(&raw mut pointer, 0, 0));
        let mut own = vec![0_u8; 1 << 20];
        let own = own.as_mut_ptr().cast::<c_void>();
        report.code("register", sys::cuMemHostRegister_v2(own, 1 << 20, 0));
        report.code("register twice", sys::cuMemHostRegister_v2(own, 1 << 20, 0));
        report.code("unregister", sys::cuMemHostUnregister(own));
        report.code("unregister twice", sys::cuMemHostUnregister(own));
    }
}

fn pointers(report: &mut Report) {
    let address = alloc(10_000);
    for number in 1..=20_u32 {
        let mut words = [u64::MAX; 8];
        // SAFETY: the buffer is at least as long as the attribute; the bindings' function takes an enum of the same size.
        let (inside, nothing) = unsafe {
            let ask = cuda::symbol::<unsafe extern "C" fn(*mut c_void, u32, u64) -> sys::CUresult>(c"cuPointerGetAttribute");
            (ask(words.as_mut_ptr().cast(), number, address + 100), ask([0_u64; 8].as_mut_ptr().cast(), number, 0x1234_5678_9000))
        };
        let line = format!("{} of nothing {}", inside as u32, nothing as u32);
        let value = words[0];
        let shown = match number {
            1 | 3 | 7 | 11 | 17 | 19 | 20 => format!("{line} set {}", value != u64::MAX),
            5 => line,
            _ => format!("{line} value {value:#x}"),
        };
        report.answer(format!("pointer attribute {number}"), shown);
    }
    free(address);
}

fn ipc(report: &mut Report) {
    let address = alloc(4 << 20);
    // SAFETY: all-zero is a valid handle to write into; the pointers live through the calls.
    unsafe {
        let mut handle = std::mem::zeroed::<sys::CUipcMemHandle>();
        let mut mapped = 0;
        report.code("IPC handle", sys::cuIpcGetMemHandle(&raw mut handle, address));
        report.code("IPC handle of a middle", sys::cuIpcGetMemHandle(&raw mut handle, address + 512));
        report.code("IPC handle of nothing", sys::cuIpcGetMemHandle(&raw mut handle, 0x1234_5678_9000));
        report.code("open in the same process", sys::cuIpcOpenMemHandle_v2(&raw mut mapped, handle, 1));
        report.code("close of what was not opened", sys::cuIpcCloseMemHandle(address));
    }
    free(address);
    report.growth("in the end");
}
