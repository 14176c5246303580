//! The figures of CUDA and NVML in a process, and whether they agree.

use vgpu_test_programs::cuda::sys;
use vgpu_test_programs::cuda::{self, check, name};
use vgpu_test_programs::nvml::Nvml;

pub struct Figures {
    nvml: Nvml,
    ordinal: i32,
    limit: u64,
}

fn same(what: &str, said: u64, wanted: u64) -> Result<(), String> {
    if said == wanted { Ok(()) } else { Err(format!("{what}: {said}, expected {wanted}")) }
}

fn at_most(what: &str, said: u64, most: u64) -> Result<(), String> {
    if said <= most { Ok(()) } else { Err(format!("{what}: {said}, expected at most {most}")) }
}

impl Figures {
    /// Selects the GPU with this CUDA ordinal, which must have this UUID.
    pub fn new(uuid: &str, ordinal: i32, limit: u64) -> Result<Figures, String> {
        let nvml = Nvml::by_uuid(uuid)?;
        let mut found = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuDeviceGetUuid_v2(&raw mut found, ordinal) }).map_err(name)?;
        let bytes: Vec<String> = found.bytes.iter().map(|&byte| format!("{:02x}", byte as u8)).collect();
        if uuid.trim_start_matches("GPU-").replace('-', "") != bytes.concat() {
            return Err(format!("ordinal {ordinal}: {}, expected {uuid}", bytes.concat()));
        }
        Ok(Figures { nvml, ordinal, limit })
    }

    /// Compares all figures; `obtained` is what the process has allocated, in bytes. Returns the bytes in use.
    pub fn check(&self, when: &str, obtained: u64) -> Result<u64, String> {
        self.check_all(obtained).map_err(|error| format!("{when}: {error}"))
    }

    fn check_all(&self, obtained: u64) -> Result<u64, String> {
        let limit = self.limit;
        let mut total = 0;
        // SAFETY: the out-pointers are valid; null is allowed where it is passed.
        unsafe {
            check(sys::cuDeviceTotalMem_v2(&raw mut total, self.ordinal)).map_err(name)?;
            check(sys::cuMemGetInfo_v2(std::ptr::null_mut(), std::ptr::null_mut())).map_err(name)?;
        }
        same("cuDeviceTotalMem", total as u64, limit)?;
        let (free, total) = cuda::memory().map_err(name)?;
        same("cuMemGetInfo's total", total as u64, limit)?;
        at_most("cuMemGetInfo's free", free as u64, limit - obtained)?;
        let v1 = self.nvml.memory_info().ok_or("no nvmlDeviceGetMemoryInfo")?;
        same("NVML's total", v1.total, limit)?;
        same("NVML's used + free", v1.used + v1.free, limit)?;
        same("NVML's free", v1.free, free as u64)?;
        let v2 = self.nvml.memory_info_v2().ok_or("no nvmlDeviceGetMemoryInfo_v2")?;
        same("NVML's total, version 2", v2.total, limit)?;
        same("NVML's reserved + used + free, version 2", v2.reserved + v2.used + v2.free, limit)?;
        same("NVML's free, version 2", v2.free, free as u64)?;
        let own = std::process::id();
        let lists = [("1", self.nvml.processes_v1()), ("3", self.nvml.processes()), ("detail", self.nvml.process_details())];
        for (version, list) in &lists {
            let found = list.iter().find(|process| process.0 == own).ok_or(format!("not in NVML's list {version}: {list:?}"))?;
            at_most(&format!("NVML's list {version}"), list.iter().map(|process| process.1).sum(), v1.used)?;
            if found.1 < obtained / 2 {
                return Err(format!("NVML's list {version}: {} bytes, expected at least {obtained}", found.1));
            }
        }
        let (gpu, memory) = self.nvml.utilization().ok_or("no nvmlDeviceGetUtilizationRates")?;
        at_most("NVML's utilisation", u64::from(gpu.max(memory)), 100)?;
        Ok(v1.used)
    }

    /// Compares the attributes of the default pool.
    pub fn check_pool(&self, bytes: u64) -> Result<(), String> {
        let (mut pool, mut used, mut reserved) = (std::ptr::null_mut(), 0_u64, 0_u64);
        // SAFETY: the out-pointers are valid, and the attributes are 64-bit numbers.
        unsafe {
            check(sys::cuDeviceGetMemPool(&raw mut pool, self.ordinal)).map_err(name)?;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
            check(sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut used).cast())).map_err(name)?;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            check(sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut reserved).cast())).map_err(name)?;
        }
        same("the pool's used", used, bytes)?;
        at_most("the pool's used", used, reserved)?;
        at_most("the pool's reserved", reserved, self.limit)
    }
}
