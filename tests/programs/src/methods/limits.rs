//! Memory that contexts reserve for kernels: stacks, the heap of `malloc`, the buffer of `printf`, local memory.

use std::ffi::CString;
use std::ptr::null_mut;

use super::common::Allocate;
use super::{images, linear};
use crate::cuda::sys::{self, CUdevice_attribute, CUfunction, CUlimit, CUresult};
use crate::cuda::{check, memory, synchronize};
use crate::ptx;

fn limit(which: CUlimit) -> Result<usize, CUresult> {
    let mut value = 0;
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuCtxGetLimit(&raw mut value, which) })?;
    Ok(value)
}

/// Raises a limit, which applies to `count` objects, above `counted` by `bytes` in all. Returns the bytes added.
fn raise(which: CUlimit, count: usize, counted: &mut usize, bytes: usize) -> Result<u64, CUresult> {
    let step = (bytes / count / 16).max(1) * 16;
    // SAFETY: the arguments are plain numbers.
    check(unsafe { sys::cuCtxSetLimit(which, *counted + step) })?;
    let before = std::mem::replace(counted, limit(which)?);
    Ok((counted.saturating_sub(before) * count) as u64)
}

/// Returns the number of threads that a GPU holds at once: each has a stack.
fn threads(ordinal: i32) -> Result<usize, CUresult> {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the out-pointer is valid.
        check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, ordinal) }).map(|()| value as usize)
    };
    Ok(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
        * attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?)
}

/// Loads PTX and returns its kernel with this name.
fn kernel(text: &str, name: &str) -> Result<CUfunction, CUresult> {
    let (text, name) = (CString::new(text).expect("PTX without zero bytes"), CString::new(name).expect("a name without zero bytes"));
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the strings are NUL-terminated and the out-pointers valid.
    unsafe {
        check(sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
        check(sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()))?;
    }
    Ok(function)
}

fn launch(function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: the kernel takes no arguments.
    check(unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()) })?;
    synchronize()
}

pub fn heap(_ordinal: i32) -> Result<Allocate, CUresult> {
    PREPARED.set(Some(kernel(ptx::MALLOC, "take")?));
    let mut counted = 0;
    Ok(Box::new(move |bytes| raise(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 1, &mut counted, bytes)))
}

thread_local! {
    /// The kernel that makes the driver commit the heap or buffer; loaded while there is memory for its code.
    static PREPARED: std::cell::Cell<Option<CUfunction>> = const { std::cell::Cell::new(None) };
}

/// Launches the prepared kernel: the driver commits the heap when a kernel first uses it.
pub fn use_heap() -> Result<(), CUresult> {
    PREPARED.get().map_or(Ok(()), launch)
}

/// One heap of one chunk: the limit cannot be changed once the heap is in use.
pub fn heap_used(_ordinal: i32) -> Result<Allocate, CUresult> {
    let function = kernel(ptx::MALLOC, "take")?;
    let mut used = false;
    Ok(Box::new(move |bytes| {
        if used {
            return Err(CUresult::CUDA_SUCCESS);
        }
        let got = raise(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 1, &mut 0, bytes)?;
        used = true;
        launch(function).map(|()| got)
    }))
}

/// A heap of the default size: plain allocations first, then a kernel that uses the heap.
pub fn default_heap(ordinal: i32) -> Result<Allocate, CUresult> {
    PREPARED.set(Some(kernel(ptx::MALLOC, "take")?));
    linear::plain(ordinal)
}

/// Allocates all but the given bytes, then loads and launches `kernel` once.
fn near_limit(kernel: fn() -> Result<CUfunction, CUresult>) -> Allocate {
    let mut used = false;
    Box::new(move |bytes| {
        if used {
            return Err(CUresult::CUDA_SUCCESS);
        }
        for size in (1..=6).rev().map(|power| 1 << (20 + power)) {
            while memory()?.0 >= bytes + size {
                linear::allocate(size)?;
            }
        }
        launch(kernel()?)?;
        used = true;
        Ok(0)
    })
}

pub fn malloc_module(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(near_limit(|| kernel(ptx::MALLOC, "take")))
}

/// The kernel of a library is loaded when it is launched.
pub fn malloc_library(_ordinal: i32) -> Result<Allocate, CUresult> {
    Ok(near_limit(|| {
        let library = images::load_library(&CString::new(ptx::MALLOC).expect("PTX without zero bytes"))?;
        let mut kernel = null_mut();
        // SAFETY: the library was just loaded, and the out-pointer is valid.
        check(unsafe { sys::cuLibraryGetKernel(&raw mut kernel, library, c"take".as_ptr()) })?;
        Ok(kernel.cast())
    }))
}

pub fn printf_buffer(_ordinal: i32) -> Result<Allocate, CUresult> {
    PREPARED.set(Some(kernel(ptx::PRINTF, "say")?));
    let mut counted = 0;
    Ok(Box::new(move |bytes| raise(CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 1, &mut counted, bytes)))
}

/// Launches the prepared kernel, which uses the `printf` buffer.
pub fn use_printf_buffer() -> Result<(), CUresult> {
    use_heap()
}

pub fn stack(ordinal: i32) -> Result<Allocate, CUresult> {
    let (threads, mut counted) = (threads(ordinal)?, limit(CUlimit::CU_LIMIT_STACK_SIZE)?);
    Ok(Box::new(move |bytes| raise(CUlimit::CU_LIMIT_STACK_SIZE, threads, &mut counted, bytes)))
}

/// Kernels of which each needs a little more local memory for each thread than the one before.
pub fn local_memory(ordinal: i32) -> Result<Allocate, CUresult> {
    let threads = threads(ordinal)?;
    Ok(Box::new(move |bytes| {
        let before = limit(CUlimit::CU_LIMIT_STACK_SIZE)?;
        let step = (bytes / threads / 16).max(1) * 16;
        let function = kernel(&ptx::local(before + step), "deep")?;
        let mut out = 0_u64;
        // SAFETY: the kernel writes 8 bytes to its argument, an allocation of this function.
        unsafe {
            check(sys::cuMemAlloc_v2(&raw mut out, 8))?;
            let mut arguments = [(&raw mut out).cast()];
            check(sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()))?;
        }
        synchronize()?;
        Ok((step * threads) as u64)
    }))
}
