//! Contexts and streams, which take memory that no call asks for.

use std::ptr::null_mut;

use super::Taker;
use crate::cuda::sys::{self, CUcontext, CUresult};
use crate::cuda::{check, symbol};

/// More than this are enough to see that they are held to the limit, or take nothing.
const MOST: u32 = 256;

/// Makes contexts with `create`, and takes each off the thread's stack again.
fn contexts(create: impl Fn(*mut CUcontext, i32) -> CUresult + 'static, ordinal: i32) -> Taker {
    Box::new(move |_| {
        let mut context = null_mut();
        check(create(&raw mut context, ordinal))?;
        // SAFETY: the context that was just pushed.
        check(unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) })?;
        Ok(0)
    })
}

/// The first two versions have one signature.
fn with_flags(name: &'static std::ffi::CStr, ordinal: i32) -> Taker {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
    // SAFETY: the signature of those versions.
    let create: Create = unsafe { symbol(name) };
    // SAFETY: room for the answer.
    contexts(move |context, ordinal| unsafe { create(context, 0, ordinal) }, ordinal)
}

pub fn v1(ordinal: i32) -> Result<Taker, CUresult> {
    Ok(with_flags(c"cuCtxCreate", ordinal))
}

pub fn v2(ordinal: i32) -> Result<Taker, CUresult> {
    Ok(with_flags(c"cuCtxCreate_v2", ordinal))
}

pub fn v3(ordinal: i32) -> Result<Taker, CUresult> {
    type Create = unsafe extern "C" fn(*mut CUcontext, *mut std::ffi::c_void, i32, u32, i32) -> CUresult;
    // SAFETY: the third version's signature.
    let create: Create = unsafe { symbol(c"cuCtxCreate_v3") };
    // SAFETY: room for the answer.
    Ok(contexts(move |context, ordinal| unsafe { create(context, null_mut(), 0, 0, ordinal) }, ordinal))
}

pub fn v4(ordinal: i32) -> Result<Taker, CUresult> {
    // SAFETY: room for the answer.
    Ok(contexts(|context, ordinal| unsafe { sys::cuCtxCreate_v4(context, null_mut(), 0, ordinal) }, ordinal))
}

/// Green contexts of the whole GPU.
pub fn green(ordinal: i32) -> Result<Taker, CUresult> {
    let mut count = 0;
    Ok(Box::new(move |_| {
        count += 1;
        if count > MOST {
            return Err(CUresult::CUDA_SUCCESS);
        }
        let (mut description, mut green) = (null_mut(), null_mut());
        // SAFETY: all-zero is room for the resource; every call gets room for its answers.
        unsafe {
            let mut resource = std::mem::zeroed::<sys::CUdevResource>();
            check(sys::cuDeviceGetDevResource(ordinal, &raw mut resource, sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM))?;
            check(sys::cuDevResourceGenerateDesc(&raw mut description, &raw mut resource, 1))?;
            // CU_GREEN_CTX_DEFAULT_STREAM
            check(sys::cuGreenCtxCreate(&raw mut green, description, ordinal, 1))?;
        }
        Ok(0)
    }))
}

pub fn streams(_ordinal: i32) -> Result<Taker, CUresult> {
    let mut count = 0;
    Ok(Box::new(move |_| {
        count += 1;
        if count > MOST {
            return Err(CUresult::CUDA_SUCCESS);
        }
        super::stream().map(|_| 0)
    }))
}
