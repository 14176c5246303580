//! Limits of a context (`cuCtxGetLimit`).

use crate::loader::driver;
use vgpu_cuda_abi::cuda::{self, Device};

/// Returns a limit of the current context; 0 if the driver does not tell it.
pub fn limit_now(limit: i32) -> u64 {
    let _capture = driver::CaptureRelaxed::enter();
    let mut value = 0;
    // SAFETY: the driver writes one integer.
    unsafe { driver::context_limit(&raw mut value, limit) };
    value as u64
}

/// Returns the number of threads that a device holds at once. Each has a stack.
pub fn resident_threads(device: Device) -> u64 {
    let attribute = |which| driver::attribute_of(device, which) as u64;
    attribute(cuda::ATTRIBUTE_MULTIPROCESSORS) * attribute(cuda::ATTRIBUTE_THREADS_PER_MULTIPROCESSOR)
}
