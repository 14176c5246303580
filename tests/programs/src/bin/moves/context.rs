//! A context besides the primary one, which all threads use.

use std::ptr::null_mut;

use vgpu_test_programs::cuda::{self, check, sys::*};

/// The context.
#[derive(Clone, Copy)]
pub struct Context(CUcontext);

// SAFETY: contexts belong to no thread.
unsafe impl Send for Context {}

impl Context {
    /// Creates the context, which is not made current.
    pub fn create(gpu: i32) -> Result<Self, CUresult> {
        type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
        let (mut context, mut popped) = (null_mut(), null_mut());
        cuda::start(gpu)?;
        // SAFETY: the version that all drivers have, with its signature; the out-pointers are valid.
        unsafe {
            check(cuda::symbol::<Create>(c"cuCtxCreate_v2")(&raw mut context, 0, gpu))?;
            check(cuCtxPopCurrent_v2(&raw mut popped))?;
        }
        Ok(Self(context))
    }

    /// Makes a context with memory that can move, and destroys it while the memory may be away. Not if there is no room for it.
    pub fn make_and_end(gpu: i32) -> Result<(), CUresult> {
        let own = match Self::create(gpu) {
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => return Ok(()),
            own => own?,
        };
        let mut address = 0;
        // SAFETY: the out-pointer is valid, and the block is as long as the fill.
        let filled = own.run(|| unsafe {
            check(cuMemAlloc_v2(&raw mut address, 4 << 20))?;
            check(cuMemsetD32Async(address, 1, 1 << 20, null_mut()))
        });
        std::thread::sleep(std::time::Duration::from_millis(2));
        // SAFETY: this function's own context.
        check(unsafe { cuCtxDestroy_v2(own.0) })?;
        if filled == Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) { Ok(()) } else { filled }
    }

    /// Makes a stream and an event in it.
    pub fn stream(self) -> Result<(CUstream, CUevent), CUresult> {
        let (mut stream, mut event) = (null_mut(), null_mut());
        // SAFETY: the out-pointers are valid.
        self.run(|| unsafe {
            check(cuStreamCreate(&raw mut stream, 1))?;
            check(cuEventCreate(&raw mut event, 2))
        })?;
        Ok((stream, event))
    }

    /// Does something while it is current.
    pub fn run(self, work: impl FnOnce() -> Result<(), CUresult>) -> Result<(), CUresult> {
        let mut popped = null_mut();
        // SAFETY: a living context; the out-pointer is valid.
        unsafe {
            check(cuCtxPushCurrent_v2(self.0))?;
            let result = work();
            check(cuCtxPopCurrent_v2(&raw mut popped))?;
            result
        }
    }
}
