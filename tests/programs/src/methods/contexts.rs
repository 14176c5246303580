//! Contexts and streams, which take memory that no call asks for.

use std::ptr::null_mut;

use super::common::Allocate;
use crate::cuda::sys::{self, CUcontext, CUresult};
use crate::cuda::{check, require, symbol};

/// Number of contexts that shows whether they are limited or take nothing.
const MOST: u32 = 256;

/// Creates contexts with `create` and pops each off the thread's stack.
fn contexts(create: impl Fn(*mut CUcontext, i32) -> CUresult + 'static, ordinal: i32) -> Allocate {
    Box::new(move |_| {
        let mut context = null_mut();
        check(create(&raw mut context, ordinal))?;
        // SAFETY: the context was just pushed.
        check(unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) })?;
        Ok(0)
    })
}

/// Contexts by the first two versions, which have the same signature.
fn with_flags(name: &'static std::ffi::CStr, ordinal: i32) -> Allocate {
    type Create = unsafe extern "C" fn(*mut CUcontext, u32, i32) -> CUresult;
    // SAFETY: the first two versions have this signature.
    let create: Create = unsafe { symbol(name) };
    // SAFETY: the out-pointer is valid.
    contexts(move |context, ordinal| unsafe { create(context, 0, ordinal) }, ordinal)
}

pub fn v1(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(with_flags(c"cuCtxCreate", ordinal))
}

pub fn v2(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(with_flags(c"cuCtxCreate_v2", ordinal))
}

pub fn v3(ordinal: i32) -> Result<Allocate, CUresult> {
    type Create = unsafe extern "C" fn(*mut CUcontext, *mut std::ffi::c_void, i32, u32, i32) -> CUresult;
    // SAFETY: the third version has this signature.
    let create: Create = unsafe { symbol(c"cuCtxCreate_v3") };
    // SAFETY: the out-pointer is valid.
    Ok(contexts(move |context, ordinal| unsafe { create(context, null_mut(), 0, 0, ordinal) }, ordinal))
}

pub fn v4(ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(contexts(
        |context, ordinal| match require(c"cuCtxCreate_v4") {
            // SAFETY: the out-pointer is valid.
            Ok(()) => unsafe { sys::cuCtxCreate_v4(context, null_mut(), 0, ordinal) },
            Err(code) => code,
        },
        ordinal,
    ))
}

/// Green contexts of the whole GPU.
pub fn green(ordinal: i32) -> Result<Allocate, CUresult> {
    let mut count = 0;
    Ok(Box::new(move |_| {
        count += 1;
        if count > MOST {
            return Err(CUresult::CUDA_SUCCESS);
        }
        require(c"cuGreenCtxCreate")?;
        let (mut description, mut green) = (null_mut(), null_mut());
        // SAFETY: all-zero is valid for the resource; the out-pointers are valid.
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

pub fn streams(_ordinal: i32) -> Result<Allocate, CUresult> {
    let mut count = 0;
    Ok(Box::new(move |_| {
        count += 1;
        if count > MOST {
            return Err(CUresult::CUDA_SUCCESS);
        }
        super::common::stream().map(|_| 0)
    }))
}
