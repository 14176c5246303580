//! Paths inside a container. Other crates take them from here.

use core::ffi::CStr;

/// Folder of all vgpu files in the container.
pub const DIR: &str = "/usr/local/vgpu";
/// The preloaded library: the host's versioned file, read-only.
pub const LIBRARY: &str = "/usr/local/vgpu/libvgpu.so";
/// The limits page, read-only ([`crate::limits`]).
pub const LIMITS: &str = "/usr/local/vgpu/limits";
/// The accounting region, read-write ([`crate::region`]).
pub const REGION: &str = "/usr/local/vgpu/region";
/// The loader's list of preloaded libraries, merged with the image's own.
pub const LD_SO_PRELOAD: &str = "/etc/ld.so.preload";

/// Folder of the driver's own libraries, under their own names, when ours is mounted over them.
pub const DRIVER: &str = "/usr/local/vgpu/driver";

/// Folder of the NVIDIA MPS daemon's pipes, for containers whose GPU time MPS limits instead of the library.
pub const MPS: &str = "/usr/local/vgpu/mps";

/// Variable that names the folder of limits page and region for a program outside any limited container.
pub const DIR_VARIABLE: &str = "VGPU_DIR";
/// Maximum length in bytes of the value of [`DIR_VARIABLE`].
pub const MAX_DIR_LEN: usize = 200;

/// [`LIMITS`], for system calls.
pub const LIMITS_C: &CStr = c"/usr/local/vgpu/limits";
/// [`REGION`], for system calls.
pub const REGION_C: &CStr = c"/usr/local/vgpu/region";
/// [`MPS`], for system calls.
pub const MPS_C: &CStr = c"/usr/local/vgpu/mps";
/// Pipe on which the MPS daemon listens, for system calls.
pub const MPS_CONTROL_C: &CStr = c"/usr/local/vgpu/mps/control";

/// The driver's own `libcuda.so.1`, if ours is mounted over it, for system calls.
pub const DRIVER_CUDA_C: &CStr = c"/usr/local/vgpu/driver/libcuda.so.1";
/// The driver's own `libnvidia-ml.so.1`, if ours is mounted over it, for system calls.
pub const DRIVER_NVML_C: &CStr = c"/usr/local/vgpu/driver/libnvidia-ml.so.1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_strings_match_the_paths() {
        assert_eq!(LIMITS_C.to_str(), Ok(LIMITS));
        assert_eq!(REGION_C.to_str(), Ok(REGION));
        assert_eq!(MPS_C.to_str(), Ok(MPS));
        assert!(MPS_CONTROL_C.to_bytes().starts_with(MPS.as_bytes()));
        assert!([DRIVER_CUDA_C, DRIVER_NVML_C].iter().all(|path| path.to_bytes().starts_with(DRIVER.as_bytes())));
        assert!([LIBRARY, LIMITS, REGION, DRIVER, MPS].iter().all(|path| path.starts_with(DIR)));
    }
}
