//! NVML's figures of one GPU.

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t, nvmlUtilization_t,
};

/// The initialised library and one GPU.
pub struct Nvml {
    library: NvmlLib,
    device: nvmlDevice_t,
}

// SAFETY: NVML is thread-safe, and its handles are valid in every thread.
unsafe impl Send for Nvml {}

impl Nvml {
    /// Loads `libnvidia-ml.so.1` and selects the GPU with this index.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn open(index: u32) -> Result<Nvml, String> {
        // SAFETY: the out-pointer is valid.
        Nvml::with(|library, device| unsafe { library.nvmlDeviceGetHandleByIndex_v2(index, device) })
    }

    /// Loads `libnvidia-ml.so.1` and selects the GPU with this UUID.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn by_uuid(uuid: &str) -> Result<Nvml, String> {
        let uuid = std::ffi::CString::new(uuid).map_err(|error| error.to_string())?;
        // SAFETY: the UUID is NUL-terminated and the out-pointer valid.
        Nvml::with(|library, device| unsafe { library.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), device) })
    }

    fn with(find: impl FnOnce(&NvmlLib, *mut nvmlDevice_t) -> u32) -> Result<Nvml, String> {
        // SAFETY: the driver's library has no constructors that need anything of this program.
        let library = unsafe { NvmlLib::new("libnvidia-ml.so.1") }.map_err(|error| error.to_string())?;
        let mut device = std::ptr::null_mut();
        // SAFETY: the call takes no arguments.
        unsafe { library.nvmlInit_v2() };
        match find(&library, &raw mut device) {
            0 => Ok(Nvml { library, device }),
            code => Err(format!("NVML error {code}")),
        }
    }

    /// Returns the GPU's UUID.
    #[must_use]
    pub fn uuid(&self) -> String {
        let mut text = [0_u8; 96];
        // SAFETY: the buffer has the length that the call is given, and NVML terminates what it writes.
        let code = unsafe { self.library.nvmlDeviceGetUUID(self.device, text.as_mut_ptr().cast(), text.len() as u32) };
        let uuid = std::ffi::CStr::from_bytes_until_nul(&text).unwrap_or_default();
        if code == 0 { uuid.to_string_lossy().into_owned() } else { String::new() }
    }

    /// Returns the GPU's name.
    #[must_use]
    pub fn name(&self) -> String {
        let mut text = [0_u8; 96];
        // SAFETY: the buffer has the length that the call is given, and NVML terminates what it writes.
        let code = unsafe { self.library.nvmlDeviceGetName(self.device, text.as_mut_ptr().cast(), text.len() as u32) };
        let name = std::ffi::CStr::from_bytes_until_nul(&text).unwrap_or_default();
        if code == 0 { name.to_string_lossy().into_owned() } else { format!("NVML error {code}") }
    }

    /// Returns total and used bytes.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        self.memory_info().map(|memory| (memory.total, memory.used))
    }

    /// Returns the figures of `nvmlDeviceGetMemoryInfo`, in bytes.
    #[must_use]
    pub fn memory_info(&self) -> Option<nvmlMemory_t> {
        let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
        // SAFETY: the out-pointer is valid.
        let code = unsafe { self.library.nvmlDeviceGetMemoryInfo(self.device, &raw mut memory) };
        (code == 0).then_some(memory)
    }

    /// Returns the figures of `nvmlDeviceGetMemoryInfo_v2`, in bytes.
    #[must_use]
    pub fn memory_info_v2(&self) -> Option<nvmlMemory_v2_t> {
        let version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
        self.library.nvmlDeviceGetMemoryInfo_v2.as_ref().ok()?;
        let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        // SAFETY: the out-pointer is valid, and the struct has its version set.
        let code = unsafe { self.library.nvmlDeviceGetMemoryInfo_v2(self.device, &raw mut memory) };
        (code == 0).then_some(memory)
    }

    /// Returns the percentages of time in which the GPU and its memory were busy.
    #[must_use]
    pub fn utilization(&self) -> Option<(u32, u32)> {
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        // SAFETY: the out-pointer is valid.
        let code = unsafe { self.library.nvmlDeviceGetUtilizationRates(self.device, &raw mut rates) };
        (code == 0).then_some((rates.gpu, rates.memory))
    }

    /// Returns PID and bytes of every listed process, by the first version of the call.
    #[must_use]
    pub fn processes_v1(&self) -> Vec<(u32, u64)> {
        let mut list = vec![nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 }; 1024];
        let mut count = list.len() as u32;
        // SAFETY: the list has as many elements as the count says.
        let code = unsafe { self.library.nvmlDeviceGetComputeRunningProcesses(self.device, &raw mut count, list.as_mut_ptr()) };
        list.truncate(if code == 0 { count as usize } else { 0 });
        list.iter().map(|process| (process.pid, process.usedGpuMemory)).collect()
    }

    /// Returns PID and bytes of every listed process, by the detail list; none if the driver is too old to have it.
    #[must_use]
    pub fn process_details(&self) -> Vec<(u32, u64)> {
        if self.library.nvmlDeviceGetRunningProcessDetailList.is_err() {
            return Vec::new();
        }
        let empty =
            nvmlProcessDetail_v1_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0, usedGpuCcProtectedMemory: 0 };
        let mut list = vec![empty; 1024];
        let version = size_of::<nvmlProcessDetailList_t>() as u32 | 1 << 24;
        let mut request =
            nvmlProcessDetailList_t { version, mode: 0, numProcArrayEntries: list.len() as u32, procArray: list.as_mut_ptr() };
        // SAFETY: the list has as many elements as the request says.
        let code = unsafe { self.library.nvmlDeviceGetRunningProcessDetailList(self.device, &raw mut request) };
        list.truncate(if code == 0 { request.numProcArrayEntries as usize } else { 0 });
        list.iter().map(|process| (process.pid, process.usedGpuMemory)).collect()
    }

    /// Returns PID and bytes of every listed process.
    #[must_use]
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let empty = nvmlProcessInfo_v2_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut list = vec![empty; 1024];
        let mut count = list.len() as u32;
        // Drivers before 510 have the second version, with the same structure.
        let has_third = self.library.nvmlDeviceGetComputeRunningProcesses_v3.is_ok();
        // SAFETY: the list has as many elements as the count says.
        let code = unsafe {
            if has_third {
                self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, &raw mut count, list.as_mut_ptr())
            } else {
                self.library.nvmlDeviceGetComputeRunningProcesses_v2(self.device, &raw mut count, list.as_mut_ptr())
            }
        };
        list.truncate(if code == 0 { count as usize } else { 0 });
        list.iter().map(|process| (process.pid, process.usedGpuMemory)).collect()
    }

    /// Returns the bytes of this process; `None` if NVML does not list it.
    #[must_use]
    pub fn own(&self) -> Option<u64> {
        let own = std::process::id();
        self.processes().into_iter().find(|&(pid, _)| pid == own).map(|(_, bytes)| bytes)
    }
}
