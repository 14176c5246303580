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
        let (mut context, mut popped) = (null_mut(), null_mut());
        cuda::start(gpu)?;
        // SAFETY: the out-pointers are valid.
        unsafe {
            check(cuCtxCreate_v4(&raw mut context, null_mut(), 0, gpu))?;
            check(cuCtxPopCurrent_v2(&raw mut popped))?;
        }
        Ok(Self(context))
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
