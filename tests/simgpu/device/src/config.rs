//! Configuration of the simulated machine. Defaults are figures measured on an H200 with driver 580.

/// Properties of the machine, fixed when its state file is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Number of GPUs, at most [`crate::MAX_GPUS`].
    pub gpus: u64,
    /// Memory of each GPU in bytes, as NVML reports it.
    pub total_bytes: u64,
    /// Bytes of `total_bytes` that the driver reserves for itself (NVML's v2 "reserved"); excluded from CUDA's total.
    pub reserved_bytes: u64,
    /// Bytes in use on an idle GPU, in addition to `reserved_bytes`.
    pub baseline_bytes: u64,
    /// Bytes per context that NVML attributes to the process.
    pub context_bytes: u64,
    /// Bytes per context that NVML attributes to no process.
    pub context_hidden_bytes: u64,
    /// Number of streaming multiprocessors of each GPU.
    pub multiprocessors: u64,
    /// Time that creating a context takes, ns.
    pub context_ns: u64,
    /// Resident threads per multiprocessor; local memory is sized by them.
    pub threads_per_multiprocessor: u64,
    /// Time slice of a process on a contended GPU, ns.
    pub slice_ns: u64,
    /// GPU time lost when the time slice of another process begins, ns.
    pub switch_ns: u64,
    /// Additional GPU time lost when that interrupts work, ns.
    pub preempt_ns: u64,
    /// GPU time of each launch in addition to that of the kernel, ns.
    pub launch_ns: u64,
    /// GPU time of a kernel whose duration is unknown, ns.
    pub kernel_ns: u64,
    /// GPU time of recording an event with timing enabled, ns.
    pub event_ns: u64,
    /// Time that the control takes which switches channels off, ns.
    pub disable_ns: u64,
    /// Time that the control takes which switches channels on, ns.
    pub enable_ns: u64,
    /// 1: the resource manager refuses all controls for lack of permission.
    pub refuse_controls: u64,
    /// 1: libcuda makes no ioctls.
    pub no_ioctls: u64,
}

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            gpus: 1,
            total_bytes: 143_771 * MIB,
            reserved_bytes: 644_939_776,
            baseline_bytes: 3_407_872,
            context_bytes: 518 * MIB,
            context_hidden_bytes: 5_832_704,
            context_ns: 0,
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
            slice_ns: 2_250_000,
            switch_ns: 110_000,
            preempt_ns: 140_000,
            launch_ns: 1_550,
            kernel_ns: 1_000,
            event_ns: 2_000,
            disable_ns: 610_000,
            enable_ns: 304_000,
            refuse_controls: 0,
            no_ioctls: 0,
        }
    }
}

impl Config {
    /// Sets one property by its name in `simgpu-ctl create name=value`. Values take a suffix `K`, `M` or `G` (powers of 1024).
    ///
    /// # Errors
    /// Names the unknown property or the invalid value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let (digits, unit) = match value.as_bytes().last() {
            Some(b'K') => (&value[..value.len() - 1], 1 << 10),
            Some(b'M') => (&value[..value.len() - 1], 1 << 20),
            Some(b'G') => (&value[..value.len() - 1], 1 << 30),
            _ => (value, 1),
        };
        let number =
            digits.parse::<u64>().map_err(|_| format!("{name}: \"{value}\": expected a number with an optional suffix K, M or G"))?;
        let number = number.checked_mul(unit).ok_or_else(|| format!("{name}: \"{value}\": expected at most 2^64-1"))?;
        let field = match name {
            "gpus" => &mut self.gpus,
            "total" => &mut self.total_bytes,
            "reserved" => &mut self.reserved_bytes,
            "baseline" => &mut self.baseline_bytes,
            "context" => &mut self.context_bytes,
            "context_hidden" => &mut self.context_hidden_bytes,
            "context_ns" => &mut self.context_ns,
            "multiprocessors" => &mut self.multiprocessors,
            "threads" => &mut self.threads_per_multiprocessor,
            "slice_ns" => &mut self.slice_ns,
            "switch_ns" => &mut self.switch_ns,
            "launch_ns" => &mut self.launch_ns,
            "kernel_ns" => &mut self.kernel_ns,
            "preempt_ns" => &mut self.preempt_ns,
            "event_ns" => &mut self.event_ns,
            "disable_ns" => &mut self.disable_ns,
            "enable_ns" => &mut self.enable_ns,
            "refuse_controls" => &mut self.refuse_controls,
            "no_ioctls" => &mut self.no_ioctls,
            _ => return Err(format!("{name}: unknown property")),
        };
        *field = number;
        Ok(())
    }

    /// Returns the total memory of a GPU as CUDA reports it, in bytes.
    #[must_use]
    pub fn cuda_total(&self) -> u64 {
        self.total_bytes - self.reserved_bytes
    }
}

/// Product name of the GPU.
pub const NAME: &str = "NVIDIA H200 (simulated)";
/// Compute capability, major and minor.
pub const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);

/// Returns the UUID of the GPU with this physical index.
#[must_use]
pub fn uuid(gpu: usize) -> [u8; 16] {
    let mut bytes = *b"\x51\x6d\x67\x70\x75\x00\x40\x00\x80\x00\x00\x00\x00\x00\x00\x00";
    bytes[15] = u8::try_from(gpu).unwrap_or(u8::MAX);
    bytes
}

/// Returns the UUID as text: `GPU-` and five groups of hexadecimal digits.
#[must_use]
pub fn uuid_text(gpu: usize) -> String {
    let hex = uuid(gpu).map(|byte| format!("{byte:02x}")).concat();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns the PCI bus number of a GPU.
#[must_use]
pub fn pci_bus(gpu: usize) -> u32 {
    u32::try_from(gpu).unwrap_or(0) + 0x1b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes() {
        let mut config = Config::default();
        config.set("total", "2G").unwrap();
        config.set("gpus", "2").unwrap();
        assert_eq!((config.total_bytes, config.gpus), (2 << 30, 2));
        assert!(config.set("total", "2Q").is_err());
        assert!(config.set("nonsense", "1").is_err());
        assert!(config.set("total", "18446744073709551615G").is_err());
    }

    #[test]
    fn uuids_are_unique_and_formatted_as_nvidia_does() {
        assert_ne!(uuid(0), uuid(1));
        assert_eq!(uuid_text(1), "GPU-516d6770-7500-4000-8000-000000000001");
    }
}
