//! What the management library says of one GPU.

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_v2_t};

/// The library, initialised, and a GPU.
pub struct Nvml {
    library: NvmlLib,
    device: nvmlDevice_t,
}

// SAFETY: NVML may be called from any thread, and its handles are the same in all of them.
unsafe impl Send for Nvml {}

impl Nvml {
    /// Loads `libnvidia-ml.so.1` and takes the GPU with this index.
    ///
    /// # Errors
    /// Says what failed.
    pub fn open(index: u32) -> Result<Nvml, String> {
        // SAFETY: the library's constructors are the driver's own business.
        let library = unsafe { NvmlLib::new("libnvidia-ml.so.1") }.map_err(|error| error.to_string())?;
        let mut device = std::ptr::null_mut();
        // SAFETY: plain calls with room for the answer.
        let code = unsafe {
            library.nvmlInit_v2();
            library.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)
        };
        if code == 0 { Ok(Nvml { library, device }) } else { Err(format!("NVML's code {code}")) }
    }

    /// The GPU's name.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = [0_u8; 96];
        // SAFETY: the buffer is as long as the call is told, and NVML terminates what it writes.
        let code = unsafe { self.library.nvmlDeviceGetName(self.device, text.as_mut_ptr().cast(), text.len() as u32) };
        let name = std::ffi::CStr::from_bytes_until_nul(&text).unwrap_or_default();
        if code == 0 { name.to_string_lossy().into_owned() } else { format!("NVML's code {code}") }
    }

    /// Total and used bytes.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
        // SAFETY: room for the answer.
        let code = unsafe { self.library.nvmlDeviceGetMemoryInfo(self.device, &raw mut memory) };
        (code == 0).then_some((memory.total, memory.used))
    }

    /// PID and bytes of every process that it lists.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let empty = nvmlProcessInfo_v2_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut list = vec![empty; 1024];
        let mut count = list.len() as u32;
        // SAFETY: the list has as many elements as the count says.
        let code = unsafe { self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, &raw mut count, list.as_mut_ptr()) };
        list.truncate(if code == 0 { count as usize } else { 0 });
        list.iter().map(|process| (process.pid, process.usedGpuMemory)).collect()
    }

    /// Bytes of this process; `None` when it is not listed.
    #[must_use]
    pub fn own(&self) -> Option<u64> {
        let own = std::process::id();
        self.processes().into_iter().find(|&(pid, _)| pid == own).map(|(_, bytes)| bytes)
    }
}
