//! Libraries whose functions are intercepted.

use core::ffi::CStr;

use vgpu_cuda_abi::cuda::Status;
use vgpu_cuda_abi::{cuda, nvml};

/// Library of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver.
    Cuda = 0,
    /// NVML.
    Nvml = 1,
}

impl Library {
    /// Returns the name that programs load the library by.
    pub const fn soname(self) -> &'static CStr {
        match self {
            Self::Cuda => c"libcuda.so.1",
            Self::Nvml => c"libnvidia-ml.so.1",
        }
    }

    /// Returns the path of the driver's library where a replacement has taken its name.
    pub const fn renamed(self) -> &'static CStr {
        match self {
            Self::Cuda => vgpu_region::paths::DRIVER_CUDA_C,
            Self::Nvml => vgpu_region::paths::DRIVER_NVML_C,
        }
    }

    /// Returns the status of a function that the driver lacks.
    pub const fn missing(self) -> Status {
        match self {
            Self::Cuda => cuda::NOT_FOUND,
            Self::Nvml => nvml::FUNCTION_NOT_FOUND,
        }
    }
}
