//! NVML.

use std::ffi::c_char;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::*;
use vgpu_test_programs::cuda;

use crate::report::Report;
use crate::setup::require;

fn text(bytes: &[c_char]) -> String {
    bytes.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect()
}

pub fn ask(report: &mut Report) {
    // SAFETY: the driver's library has no constructors that need anything of this program; all-zero is valid for the structs; out-pointers
    // are valid, or null or too short where that is the question.
    unsafe {
        let nvml = NvmlLib::new("libnvidia-ml.so.1").expect("there is a driver");
        let (mut count, mut device, mut other) = (77, null_mut(), null_mut());
        report.answer("shutdown before init", nvml.nvmlShutdown());
        report.answer("count before init", nvml.nvmlDeviceGetCount_v2(&raw mut count));
        report.answer("init", nvml.nvmlInit_v2());
        report.answer("init again", nvml.nvmlInit_v2());
        report.answer("shutdown once", nvml.nvmlShutdown());
        report.answer("count", nvml.nvmlDeviceGetCount_v2(&raw mut count));
        report.answer("count to null", nvml.nvmlDeviceGetCount_v2(null_mut()));
        report.answer("handle 0", nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device));
        report.answer("handle 99", nvml.nvmlDeviceGetHandleByIndex_v2(99, &raw mut other));
        report.answer("handle to null", nvml.nvmlDeviceGetHandleByIndex_v2(0, null_mut()));
        let mut room = [0 as c_char; 96];
        report.answer("uuid", nvml.nvmlDeviceGetUUID(device, room.as_mut_ptr(), 96));
        report.answer("uuid's form", format!("{} {}", text(&room).len(), text(&room).starts_with("GPU-")));
        report.answer("handle by uuid", nvml.nvmlDeviceGetHandleByUUID(room.as_ptr(), &raw mut other));
        report.answer("is the same", device == other);
        report.answer("handle by no uuid", nvml.nvmlDeviceGetHandleByUUID(c"GPU-nothing".as_ptr(), &raw mut other));
        report.answer("uuid in 4", nvml.nvmlDeviceGetUUID(device, room.as_mut_ptr(), 4));
        report.answer("name in 4", nvml.nvmlDeviceGetName(device, room.as_mut_ptr(), 4));
        report.answer("name to null", nvml.nvmlDeviceGetName(device, null_mut(), 96));
        let mut number = 77;
        report.answer("index", nvml.nvmlDeviceGetIndex(device, &raw mut number));
        report.answer("is", number);
        let (mut major, mut minor) = (0, 0);
        report.answer("capability", nvml.nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor));
        report.answer("is", format!("{major} {minor}"));
        let mut memory = std::mem::zeroed::<nvmlMemory_t>();
        report.answer("memory", nvml.nvmlDeviceGetMemoryInfo(device, &raw mut memory));
        report.answer("total", memory.total);
        report.answer("adds up", memory.used + memory.free == memory.total);
        report.answer("memory to null", nvml.nvmlDeviceGetMemoryInfo(device, null_mut()));
        let mut second = std::mem::zeroed::<nvmlMemory_v2_t>();
        report.answer("memory v2 without version", nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
        second.version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
        report.answer("memory v2", nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
        report.answer("total, reserved", format!("{} {}", second.total, second.reserved));
        report.answer("adds up", second.used + second.free + second.reserved == second.total);
        report.answer("v1's used is v2's with reserved", memory.used == second.used + second.reserved);
        report.note(format!("used {}", second.used));
        processes(report, &nvml, device);
        report.answer("error text", std::ffi::CStr::from_ptr(nvml.nvmlErrorString(7)).to_string_lossy());
        report.answer("shutdown", nvml.nvmlShutdown());
        report.answer("memory after shutdown", nvml.nvmlDeviceGetMemoryInfo(device, &raw mut memory));
        report.answer("shutdown too often", nvml.nvmlShutdown());
    }
}

unsafe fn processes(report: &Report, nvml: &NvmlLib, device: nvmlDevice_t) {
    // SAFETY: as in `ask`.
    unsafe {
        let mut list = [std::mem::zeroed::<nvmlProcessInfo_v2_t>(); 64];
        let mut listed = || {
            let mut count = 64;
            let code = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, list.as_mut_ptr());
            let own = list[..count as usize].iter().find(|process| process.pid == std::process::id());
            format!("{code} {:?}", own.map(|own| (own.usedGpuMemory, own.gpuInstanceId, own.computeInstanceId)))
        };
        require("start", cuda::start(0).err().unwrap_or(cuda::sys::CUresult::CUDA_SUCCESS));
        report.answer("with a context", listed());
        let mut count = 0;
        report.answer("room for none", nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, null_mut()));
        report.answer("says how many", count > 0);
        report.answer("no count", nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, null_mut(), null_mut()));
        let mut count = 64;
        report.answer("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(device, &raw mut count, list.as_mut_ptr()));
        report.answer("graphics count", count);
        let mut details = std::mem::zeroed::<nvmlProcessDetailList_t>();
        report.answer("details without version", nvml.nvmlDeviceGetRunningProcessDetailList(device, &raw mut details));
        let mut rates = std::mem::zeroed::<nvmlUtilization_t>();
        report.answer("utilization", nvml.nvmlDeviceGetUtilizationRates(device, &raw mut rates));
        report.answer("utilization to null", nvml.nvmlDeviceGetUtilizationRates(device, null_mut()));
        report.answer("release", cuda::sys::cuDevicePrimaryCtxRelease_v2(0) as u32);
    }
}
