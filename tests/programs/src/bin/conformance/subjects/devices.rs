//! Properties of a GPU.

use std::ffi::c_char;
use std::ptr::null_mut;

use vgpu_test_programs::cuda::{
    self,
    sys::{self, CUdevice_attribute},
};

use crate::report::Report;
use crate::setup::require;

pub fn ask(report: &mut Report) {
    let (mut device, mut bytes, mut value) = (-1, 0, -1);
    let mut text = [0 as c_char; 64];
    // SAFETY: out-pointers are valid, or null where that is the question.
    unsafe {
        require("cuInit", sys::cuInit(0));
        report.code("cuDeviceGetCount(null)", sys::cuDeviceGetCount(null_mut()));
        report.code("cuDeviceGet(0)", sys::cuDeviceGet(&raw mut device, 0));
        report.answer("device", device);
        report.code("cuDeviceGet(-1)", sys::cuDeviceGet(&raw mut device, -1));
        report.code("cuDeviceGet(99)", sys::cuDeviceGet(&raw mut device, 99));
        report.code("cuDeviceGet(null)", sys::cuDeviceGet(null_mut(), 0));
        report.code("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut bytes, 0));
        report.answer("total", bytes);
        report.code("cuDeviceTotalMem(null)", sys::cuDeviceTotalMem_v2(null_mut(), 0));
        report.code("cuDeviceTotalMem of 99", sys::cuDeviceTotalMem_v2(&raw mut bytes, 99));
        report.code("cuDeviceGetName in 64", sys::cuDeviceGetName(text.as_mut_ptr(), 64, 0));
        report.note(format!("name {:?}", std::ffi::CStr::from_ptr(text.as_ptr())));
        report.code("cuDeviceGetName in 4", sys::cuDeviceGetName(text.as_mut_ptr(), 4, 0));
        report.answer("cut name", format!("{:?}", std::ffi::CStr::from_ptr(text.as_ptr())));
        report.code("cuDeviceGetName(null)", sys::cuDeviceGetName(null_mut(), 64, 0));
        report.code("cuDeviceGetPCIBusId in 5", sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 5, 0));
        report.code("cuDeviceGetPCIBusId in 64", sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, 0));
        report.code("cuDeviceGetByPCIBusId of it", sys::cuDeviceGetByPCIBusId(&raw mut device, text.as_ptr()));
        report.answer("that is device", device);
        report.code("cuDeviceGetByPCIBusId of nonsense", sys::cuDeviceGetByPCIBusId(&raw mut device, c"nonsense".as_ptr()));
        report.code(
            "cuDeviceGetAttribute of 99",
            sys::cuDeviceGetAttribute(&raw mut value, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99),
        );
        report.code(
            "cuDeviceGetAttribute(null)",
            sys::cuDeviceGetAttribute(null_mut(), CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0),
        );
        report.code("cuDeviceCanAccessPeer itself", sys::cuDeviceCanAccessPeer(&raw mut value, 0, 0));
        report.answer("peer access to itself", value);
        // All attributes that driver 580 knows, by number; the PCI location varies by machine.
        for number in 1..=CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX as u32 + 1 {
            let mut value = -1;
            let function: unsafe extern "C" fn(*mut i32, u32, i32) -> sys::CUresult = cuda::symbol(c"cuDeviceGetAttribute");
            let code = function(&raw mut value, number, 0);
            let line = format!("attribute {number}: {} {value}", code as u32);
            if [33, 34, 50, 117, 118, 134, 139, 140].contains(&number) { report.note(line) } else { report.answer("", line) }
        }
    }
}
