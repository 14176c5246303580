//! Modules and libraries: PTX images with their entries and globals.

mod library;

use std::collections::HashMap;
use std::ffi::{c_char, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult};
use simgpu_device::Visibility;

use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, put, read_str};
use crate::handles::as_pointer;
use crate::objects::{Function, GRANULE, Image, Kind, Limits, Module, ptx};

/// Bytes by which a context grew, besides a granule for globals, when the first image that calls `malloc` was loaded (H200, each of
/// several contexts). Its purpose is unknown; whether a second image takes it again, or when it is released, was not measured.
const MALLOC_BYTES: u64 = 138 << 20;

impl State {
    /// Returns a function that can be launched in a context.
    pub fn function(&self, handle: usize, context: usize) -> CudaResult<Function> {
        let function = self.functions.find(handle).ok_or(INVALID_HANDLE)?;
        if function.context.is_some_and(|owner| owner != context) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        Ok(function.clone())
    }

    /// Loads an image into a context and allocates its globals.
    pub fn load(&mut self, driver: &Driver, context: usize, image: Image) -> CudaResult<usize> {
        if image.uses_malloc && self.context(context)?.malloc_bytes == 0 {
            driver.charge(self.context(context)?.ordinal, MALLOC_BYTES, Visibility::Visible)?;
            self.context_mut(context)?.malloc_bytes = MALLOC_BYTES;
        }
        let mut globals = HashMap::new();
        for (name, size) in &image.globals {
            match self.allocate(driver, context, *size) {
                Ok(address) => {
                    self.memory.retype(address, |kind| Kind::Global(Box::new(kind)));
                    globals.insert(name.clone(), (address, *size));
                }
                Err(error) => {
                    globals.values().for_each(|&(address, _)| self.free_global(driver, address));
                    return Err(error);
                }
            }
        }
        Ok(self.modules.add(Module { context, image, globals, functions: HashMap::new() }))
    }

    fn free_global(&mut self, driver: &Driver, address: u64) {
        self.memory.retype(address, |kind| if let Kind::Global(inner) = kind { *inner } else { kind });
        let _ = self.free(driver, address);
    }

    /// Unloads a module.
    pub fn unload(&mut self, driver: &Driver, module: *const c_void) -> CudaResult {
        let gone = self.modules.remove(module)?;
        gone.globals.values().for_each(|&(address, _)| self.free_global(driver, address));
        self.functions.drain_if(|_, function| function.owner == module.addr());
        Ok(())
    }

    /// Unloads all modules of a context.
    pub fn unload_modules_of(&mut self, driver: &Driver, context: usize) {
        let modules = self.modules.iter().filter(|(_, module)| module.context == context).map(|(handle, _)| handle);
        for handle in modules.collect::<Vec<_>>() {
            let _ = self.unload(driver, as_pointer(handle));
        }
    }

    /// Does what the first launch of a kernel does: loads it if it is a library's, and allocates its local memory and heap.
    pub fn prepare_launch(&mut self, driver: &Driver, context: usize, function: &Function) -> CudaResult {
        if function.context.is_none() {
            self.library_module(driver, function.owner, context)?;
        }
        let mut limits = self.context(context)?.limits;
        limits.stack = limits.stack.max(function.entry.local);
        let heap_used = self.context(context)?.heap_used || function.uses_malloc;
        self.apply_limits(driver, context, limits, heap_used)
    }

    /// Changes the limits of a context and charges or releases the memory for them.
    pub fn apply_limits(&mut self, driver: &Driver, context: usize, limits: Limits, heap_used: bool) -> CudaResult {
        let config = *driver.device().config();
        let (ordinal, before) = (self.context(context)?.ordinal, self.context(context)?.limits_bytes);
        let stack = |limit: u64| limit.saturating_mul(config.multiprocessors * config.threads_per_multiprocessor) / GRANULE * GRANULE;
        let heap = if heap_used { limits.heap.saturating_add(GRANULE) } else { 0 };
        let after = (stack(limits.stack).saturating_add(heap)).cast_signed() - stack(Limits::default().stack).cast_signed();
        let difference = after.saturating_sub(before);
        if difference > 0 {
            driver.charge(ordinal, difference.unsigned_abs(), Visibility::Visible)?;
        } else {
            driver.release(ordinal, difference.unsigned_abs(), Visibility::Visible);
        }
        let context = self.context_mut(context)?;
        (context.limits, context.limits_bytes, context.heap_used) = (limits, after, heap_used);
        Ok(())
    }
}

fn load(out: *mut CUmodule, image: *const c_void) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let context = state.current()?;
    if out.is_null() || image.is_null() {
        return Err(INVALID_VALUE);
    }
    put(out, as_pointer(state.load(driver, context, ptx::read(image)?)?))
}

fn global(address: *mut u64, size: *mut usize, module: CUmodule, name: *const c_char) -> CudaResult {
    let state = state()?;
    let &(start, length) = state.modules.get(module)?.globals.get(read_str(name)?).ok_or(NOT_FOUND)?;
    crate::ffi::put_optional(address, start);
    crate::ffi::put_optional(size, length as usize);
    Ok(())
}

fn attribute(out: *mut i32, attribute: u32, function: usize) -> CudaResult {
    let state = state()?;
    let function = state.functions.find(function).ok_or(INVALID_HANDLE)?;
    let value = match attribute {
        0 => 1024,
        3 => i32::try_from(function.entry.local).unwrap_or(i32::MAX),
        4 => 16,
        5 => 70,
        6 => 90,
        1 | 2 | 7..=15 => 0,
        _ => return Err(INVALID_VALUE),
    };
    put(out, value)
}

api! {
    fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) { load(out, image) }
    fn cuModuleLoadFatBinary(out: *mut CUmodule, image: *const c_void) { load(out, image) }
    fn cuModuleLoadDataEx(out: *mut CUmodule, image: *const c_void, _count: u32, _options: *mut u32, _values: *mut *mut c_void) {
        load(out, image)
    }

    fn cuModuleLoad(out: *mut CUmodule, path: *const c_char) {
        driver()?;
        let mut image = std::fs::read(read_str(path)?).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
        image.push(0);
        load(out, image.as_ptr().cast())
    }

    fn cuModuleUnload(module: CUmodule) {
        let driver = driver()?;
        state()?.unload(driver, module.cast())
    }

    fn cuModuleGetFunction(out: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let mut state = state()?;
        let name = read_str(name)?;
        let found = state.modules.get(module)?;
        let entry = found.image.entries.get(name).cloned().ok_or(NOT_FOUND)?;
        let known = found.functions.get(name).copied();
        let (context, uses_malloc) = (Some(found.context), found.image.uses_malloc);
        let handle = known.unwrap_or_else(|| {
            state.functions.add(Function { name: name.to_owned(), owner: module.addr(), context, entry, uses_malloc })
        });
        state.modules.get_mut(module)?.functions.insert(name.to_owned(), handle);
        put(out, as_pointer(handle))
    }

    fn cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: CUmodule, name: *const c_char) {
        global(address, size, module, name)
    }

    fn cuModuleGetFunctionCount(out: *mut u32, module: CUmodule) {
        put(out, state()?.modules.get(module)?.image.entries.len() as u32)
    }

    fn cuModuleGetLoadingMode(out: *mut u32) {
        driver()?;
        // CU_MODULE_LAZY_LOADING.
        put(out, 2)
    }

    fn cuFuncGetAttribute(out: *mut i32, which: u32, function: CUfunction) { attribute(out, which, function.addr()) }
    fn cuFuncSetAttribute(function: CUfunction, _which: u32, _value: i32) {
        state()?.functions.get(function).map(|_| ())
    }
    fn cuFuncSetCacheConfig(function: CUfunction, _config: u32) {
        state()?.functions.get(function).map(|_| ())
    }

    fn cuFuncGetName(out: *mut *const c_char, function: CUfunction) {
        state()?.functions.get(function)?;
        put(out, std::ptr::null())?;
        Err(NOT_SUPPORTED)
    }

    fn cuFuncGetModule(out: *mut CUmodule, function: CUfunction) {
        let owner = state()?.functions.get(function)?.owner;
        put(out, as_pointer(owner))
    }

    fn cuFuncLoad(function: CUfunction) { state()?.functions.get(function).map(|_| ()) }
    fn cuFuncIsLoaded(out: *mut u32, function: CUfunction) {
        state()?.functions.get(function)?;
        put(out, 1)
    }
    fn cuKernelGetAttribute(out: *mut i32, which: u32, kernel: *mut c_void, _device: i32) { attribute(out, which, kernel.addr()) }
}
