//! Modules and libraries with large global arrays.

use std::ffi::{CStr, CString, c_void};
use std::io::Write;
use std::ptr::null_mut;

use super::common::Allocate;
use crate::cuda::check;
use crate::cuda::sys::{self, CUlibrary, CUresult};
use crate::ptx;

/// Writes an image to a file and passes the path to `load`.
fn in_file(bytes: usize, load: impl FnOnce(&CStr) -> Result<u64, CUresult>) -> Result<u64, CUresult> {
    let failed = |_| CUresult::CUDA_ERROR_OPERATING_SYSTEM;
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.write_all(ptx::array(bytes).to_bytes()).map_err(failed)?;
    load(&CString::new(file.path().to_string_lossy().into_owned()).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?)
}

pub fn module(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let mut module = null_mut();
        // SAFETY: the image is NUL-terminated and the out-pointer valid.
        check(unsafe { sys::cuModuleLoadData(&raw mut module, ptx::array(bytes).as_ptr().cast()) })?;
        Ok(bytes as u64)
    }))
}

pub fn module_ex(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let mut module = null_mut();
        // SAFETY: as above; there are no options.
        check(unsafe { sys::cuModuleLoadDataEx(&raw mut module, ptx::array(bytes).as_ptr().cast(), 0, null_mut(), null_mut()) })?;
        Ok(bytes as u64)
    }))
}

pub fn module_file(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        in_file(bytes, |path| {
            let mut module = null_mut();
            // SAFETY: the path is NUL-terminated and the out-pointer valid.
            check(unsafe { sys::cuModuleLoad(&raw mut module, path.as_ptr()) })?;
            Ok(bytes as u64)
        })
    }))
}

/// The module as machine code for the GPU at hand.
pub fn cubin(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let (mut state, mut module, mut cubin, mut size) = (null_mut(), null_mut(), null_mut::<c_void>(), 0);
        let text = ptx::array(bytes);
        let kind = sys::CUjitInputType::CU_JIT_INPUT_PTX;
        let length = text.to_bytes_with_nul().len();
        // SAFETY: the text has the given length; the cubin lives as long as the linker's state.
        unsafe {
            check(sys::cuLinkCreate_v2(0, null_mut(), null_mut(), &raw mut state))?;
            let data = text.as_ptr().cast_mut().cast();
            check(sys::cuLinkAddData_v2(state, kind, data, length, c"image".as_ptr(), 0, null_mut(), null_mut()))?;
            check(sys::cuLinkComplete(state, &raw mut cubin, &raw mut size))?;
            let code = sys::cuModuleLoadData(&raw mut module, cubin);
            check(sys::cuLinkDestroy(state))?;
            check(code)?;
        }
        Ok(bytes as u64)
    }))
}

pub fn load_library(image: &CStr) -> Result<CUlibrary, CUresult> {
    let mut library = null_mut();
    // SAFETY: the image is NUL-terminated and the out-pointer valid; there are no options.
    check(unsafe {
        sys::cuLibraryLoadData(&raw mut library, image.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
    })?;
    Ok(library)
}

/// Loads a library into the current context.
fn use_library(library: CUlibrary, bytes: usize) -> Result<u64, CUresult> {
    let mut module = null_mut();
    // SAFETY: the library was just loaded.
    check(unsafe { sys::cuLibraryGetModule(&raw mut module, library) })?;
    Ok(bytes as u64)
}

pub fn library(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| use_library(load_library(&ptx::array(bytes))?, bytes)))
}

pub fn library_vectors(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| use_library(load_library(&ptx::vectors(bytes))?, bytes)))
}

pub fn library_lazy(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        let (library, mut kernel) = (load_library(&ptx::array(bytes))?, null_mut());
        // SAFETY: the library was just loaded; its kernel takes no arguments.
        unsafe {
            check(sys::cuLibraryGetKernel(&raw mut kernel, library, c"empty".as_ptr()))?;
            check(sys::cuLaunchKernel(kernel.cast(), 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()))?;
            check(sys::cuCtxSynchronize())?;
        }
        Ok(bytes as u64)
    }))
}

pub fn library_file(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(Box::new(|bytes| {
        in_file(bytes, |path| {
            let mut library = null_mut();
            // SAFETY: the path is NUL-terminated and the out-pointer valid; there are no options.
            check(unsafe {
                sys::cuLibraryLoadFromFile(&raw mut library, path.as_ptr(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
            })?;
            use_library(library, bytes)
        })
    }))
}
