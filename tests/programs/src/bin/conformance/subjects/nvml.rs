//! The management library.

use std::ffi::c_char;
use std::ptr::null_mut;

use nvml_wrapper_sys::bindings::*;
use vgpu_test_programs::cuda;

use super::{Report, need};

fn text(bytes: &[c_char]) -> String {
    bytes.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect()
}

pub fn ask(report: &mut Report) {
    // SAFETY: the library's constructors are the driver's own business; all-zero is valid for the structs; every call gets room for
    // its answers, or null or too little where that is the question.
    unsafe {
        let nvml = NvmlLib::new("libnvidia-ml.so.1").expect("there is a driver");
        let (mut count, mut device, mut other) = (77, null_mut(), null_mut());
        report.say("shutdown before init", nvml.nvmlShutdown());
        report.say("count before init", nvml.nvmlDeviceGetCount_v2(&raw mut count));
        report.say("init", nvml.nvmlInit_v2());
        report.say("init again", nvml.nvmlInit_v2());
        report.say("shutdown once", nvml.nvmlShutdown());
        report.say("count", nvml.nvmlDeviceGetCount_v2(&raw mut count));
        report.say("count to null", nvml.nvmlDeviceGetCount_v2(null_mut()));
        report.say("handle 0", nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device));
        report.say("handle 99", nvml.nvmlDeviceGetHandleByIndex_v2(99, &raw mut other));
        report.say("handle to null", nvml.nvmlDeviceGetHandleByIndex_v2(0, null_mut()));
        let mut room = [0 as c_char; 96];
        report.say("uuid", nvml.nvmlDeviceGetUUID(device, room.as_mut_ptr(), 96));
        report.say("uuid's form", format!("{} {}", text(&room).len(), text(&room).starts_with("GPU-")));
        report.say("handle by uuid", nvml.nvmlDeviceGetHandleByUUID(room.as_ptr(), &raw mut other));
        report.say("is the same", device == other);
        report.say("handle by no uuid", nvml.nvmlDeviceGetHandleByUUID(c"GPU-nothing".as_ptr(), &raw mut other));
        report.say("uuid in 4", nvml.nvmlDeviceGetUUID(device, room.as_mut_ptr(), 4));
        report.say("name in 4", nvml.nvmlDeviceGetName(device, room.as_mut_ptr(), 4));
        report.say("name to null", nvml.nvmlDeviceGetName(device, null_mut(), 96));
        let mut number = 77;
        report.say("index", nvml.nvmlDeviceGetIndex(device, &raw mut number));
        report.say("is", number);
        let (mut major, mut minor) = (0, 0);
        report.say("capability", nvml.nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor));
        report.say("is", format!("{major} {minor}"));
        let mut memory = std::mem::zeroed::<nvmlMemory_t>();
        report.say("memory", nvml.nvmlDeviceGetMemoryInfo(device, &raw mut memory));
        report.say("total", memory.total);
        report.say("adds up", memory.used + memory.free == memory.total);
        report.say("memory to null", nvml.nvmlDeviceGetMemoryInfo(device, null_mut()));
        let mut second = std::mem::zeroed::<nvmlMemory_v2_t>();
        report.say("memory v2 without version", nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
        second.version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
        report.say("memory v2", nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut second));
        report.say("total, reserved", format!("{} {}", second.total, second.reserved));
        report.say("adds up", second.used + second.free + second.reserved == second.total);
        report.say("v1's used is v2's with reserved", memory.used == second.used + second.reserved);
        report.note(format!("used {}", second.used));
        processes(report, &nvml, device);
        report.say("error text", std::ffi::CStr::from_ptr(nvml.nvmlErrorString(7)).to_string_lossy());
        report.say("shutdown", nvml.nvmlShutdown());
        report.say("memory after shutdown", nvml.nvmlDeviceGetMemoryInfo(device, &raw mut memory));
        report.say("shutdown too often", nvml.nvmlShutdown());
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
        need("start", cuda::start(0).err().unwrap_or(cuda::sys::CUresult::CUDA_SUCCESS));
        report.say("with a context", listed());
        let mut count = 0;
        report.say("room for none", nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, null_mut()));
        report.say("says how many", count > 0);
        report.say("no count", nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, null_mut(), null_mut()));
        let mut count = 64;
        report.say("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(device, &raw mut count, list.as_mut_ptr()));
        report.say("graphics count", count);
        let mut details = std::mem::zeroed::<nvmlProcessDetailList_t>();
        report.say("details without version", nvml.nvmlDeviceGetRunningProcessDetailList(device, &raw mut details));
        let mut rates = std::mem::zeroed::<nvmlUtilization_t>();
        report.say("utilization", nvml.nvmlDeviceGetUtilizationRates(device, &raw mut rates));
        report.say("utilization to null", nvml.nvmlDeviceGetUtilizationRates(device, null_mut()));
        report.say("release", cuda::sys::cuDevicePrimaryCtxRelease_v2(0) as u32);
    }
}
