//! Device handles and properties.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;
use simgpu_device::config;

use crate::api::{Handle, NvmlResult, ReturnCode, gpu, machine, put, put_text};

fn bus_id(gpu: usize) -> String {
    format!("00000000:{:02X}:00.0", config::pci_bus(gpu))
}

fn text<'a>(pointer: *const c_char) -> NvmlResult<&'a str> {
    if pointer.is_null() {
        return Err(ReturnCode::InvalidArgument);
    }
    // SAFETY: not null, and by NVML's contract a terminated string that lives through the call.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| ReturnCode::InvalidArgument)
}

fn find(out: *mut Handle, wanted: impl Fn(usize) -> bool) -> NvmlResult {
    let found = (0..machine()?.gpus()).find(|&gpu| wanted(gpu)).ok_or(ReturnCode::NotFound)?;
    put(out, found + 1)
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *slot = byte as c_char;
    }
    array
}

api! {
    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2 (out: *mut u32) {
        put(out, machine()?.gpus() as u32)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2 (index: u32, out: *mut Handle) {
        let handle = index as usize + 1;
        gpu(handle)?;
        put(out, handle)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Handle) {
        let uuid = text(uuid)?;
        find(out, |gpu| config::uuid_text(gpu) == uuid)
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2 (id: *const c_char, out: *mut Handle) {
        let id = text(id)?.to_ascii_uppercase();
        find(out, |gpu| bus_id(gpu) == id || bus_id(gpu)[4..] == id)
    }

    fn nvmlDeviceGetName(handle: Handle, out: *mut c_char, room: u32) {
        gpu(handle)?;
        put_text(out, room, config::NAME)
    }

    fn nvmlDeviceGetUUID(handle: Handle, out: *mut c_char, room: u32) { put_text(out, room, &config::uuid_text(gpu(handle)?)) }
    fn nvmlDeviceGetIndex | nvmlDeviceGetMinorNumber (handle: Handle, out: *mut u32) { put(out, gpu(handle)? as u32) }

    fn nvmlDeviceGetPciInfo_v3 | nvmlDeviceGetPciInfo_v2 (handle: Handle, out: *mut nvmlPciInfo_t) {
        let gpu = gpu(handle)?;
        put(out, nvmlPciInfo_t {
            busIdLegacy: chars(&bus_id(gpu)[4..]),
            domain: 0,
            bus: config::pci_bus(gpu),
            device: 0,
            pciDeviceId: 0x2335_10de,
            pciSubSystemId: 0x18be_10de,
            busId: chars(&bus_id(gpu)),
        })
    }

    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: *mut i32, minor: *mut i32) {
        gpu(handle)?;
        put(major, config::COMPUTE_CAPABILITY.0)?;
        put(minor, config::COMPUTE_CAPABILITY.1)
    }

    fn nvmlDeviceGetComputeMode(handle: Handle, out: *mut u32) {
        gpu(handle)?;
        put(out, 0)
    }

    fn nvmlDeviceGetMigMode(handle: Handle, current: *mut u32, pending: *mut u32) {
        gpu(handle)?;
        put(current, 0)?;
        put(pending, 0)
    }

    fn nvmlDeviceGetPersistenceMode(handle: Handle, out: *mut u32) {
        gpu(handle)?;
        put(out, 1)
    }

    fn nvmlDeviceGetTemperature(handle: Handle, _sensor: u32, out: *mut u32) {
        gpu(handle)?;
        put(out, 30)
    }

    fn nvmlDeviceGetPowerUsage(handle: Handle, out: *mut u32) {
        gpu(handle)?;
        put(out, 75_000)
    }
}
