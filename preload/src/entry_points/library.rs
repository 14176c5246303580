//! The libraries whose functions are intercepted.

use core::ffi::CStr;

use vgpu_cuda_abi::cuda::Status;
use vgpu_cuda_abi::{cuda, nvml};

/// Which library a symbol belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver.
    Cuda = 0,
    /// NVML.
    Nvml = 1,
}

impl Library {
    /// The name that programs load it by.
    pub const fn soname(self) -> &'static CStr {
        match self {
            Self::Cuda => c"libcuda.so.1",
            Self::Nvml => c"libnvidia-ml.so.1",
        }
    }

    /// Where it is when a front has taken that name.
    pub const fn beside(self) -> &'static CStr {
        match self {
            Self::Cuda => vgpu_region::paths::DRIVER_CUDA_C,
            Self::Nvml => vgpu_region::paths::DRIVER_NVML_C,
        }
    }

    /// What a function answers that the driver lacks.
    pub const fn missing(self) -> Status {
        match self {
            Self::Cuda => cuda::NOT_FOUND,
            Self::Nvml => nvml::FUNCTION_NOT_FOUND,
        }
    }
}
