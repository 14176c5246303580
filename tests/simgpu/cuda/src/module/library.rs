//! Libraries: images that are loaded into a context on first use.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};

use cudarc::driver::sys::{CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};

use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, NOT_FOUND, put, put_optional, read_str};
use crate::handles::as_pointer;
use crate::objects::{Function, Library, ptx};

fn load(out: *mut CUlibrary, image: *const c_void) -> CudaResult {
    driver()?;
    if out.is_null() || image.is_null() {
        return Err(INVALID_VALUE);
    }
    let library = Library { image: ptx::read(image)?, kernels: HashMap::new(), modules: HashMap::new() };
    put(out, as_pointer(state()?.libraries.add(library)))
}

impl State {
    /// Returns the module of a library in a context, loading it if needed.
    pub fn library_module(&mut self, driver: &Driver, library: usize, context: usize) -> CudaResult<usize> {
        let library = as_pointer::<c_void>(library);
        let found = self.libraries.get(library)?;
        if let Some(&module) = found.modules.get(&context).filter(|&&module| self.modules.contains(module)) {
            return Ok(module);
        }
        let image = found.image.clone();
        let module = self.load(driver, context, image)?;
        self.libraries.get_mut(library)?.modules.insert(context, module);
        Ok(module)
    }
}

fn module(library: CUlibrary) -> CudaResult<usize> {
    let driver = driver()?;
    let mut state = state()?;
    let context = state.current()?;
    state.library_module(driver, library.addr(), context)
}

api! {
    fn cuLibraryLoadData(out: *mut CUlibrary, image: *const c_void, _jit: *mut c_void, _jit_values: *mut c_void, _jit_count: u32,
        _options: *mut c_void, _values: *mut c_void, _count: u32) {
        load(out, image)
    }

    fn cuLibraryLoadFromFile(out: *mut CUlibrary, path: *const c_char, _jit: *mut c_void, _jit_values: *mut c_void, _jit_count: u32,
        _options: *mut c_void, _values: *mut c_void, _count: u32) {
        driver()?;
        let mut image = std::fs::read(read_str(path)?).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
        image.push(0);
        load(out, image.as_ptr().cast())
    }

    fn cuLibraryUnload(library: CUlibrary) {
        let driver = driver()?;
        let mut state = state()?;
        let gone = state.libraries.remove(library)?;
        state.functions.drain_if(|_, function| function.owner == library.addr());
        for module in gone.modules.values() {
            let _ = state.unload(driver, as_pointer(*module));
        }
        Ok(())
    }

    fn cuLibraryGetKernel(out: *mut CUkernel, library: CUlibrary, name: *const c_char) {
        let mut state = state()?;
        let name = read_str(name)?;
        let found = state.libraries.get(library)?;
        let entry = found.image.entries.get(name).cloned().ok_or(NOT_FOUND)?;
        let (known, uses_malloc) = (found.kernels.get(name).copied(), found.image.uses_malloc);
        let handle = known.unwrap_or_else(|| {
            state.functions.add(Function { name: name.to_owned(), owner: library.addr(), context: None, entry, uses_malloc })
        });
        state.libraries.get_mut(library)?.kernels.insert(name.to_owned(), handle);
        put(out, as_pointer(handle))
    }

    fn cuLibraryGetKernelCount(out: *mut u32, library: CUlibrary) {
        put(out, state()?.libraries.get(library)?.image.entries.len() as u32)
    }

    fn cuLibraryGetModule(out: *mut CUmodule, library: CUlibrary) {
        put(out, as_pointer(module(library)?))
    }

    fn cuLibraryGetGlobal(address: *mut u64, size: *mut usize, library: CUlibrary, name: *const c_char) {
        let module = module(library)?;
        let state = state()?;
        let globals = &state.modules.get(as_pointer::<c_void>(module))?.globals;
        let &(start, length) = globals.get(read_str(name)?).ok_or(NOT_FOUND)?;
        put_optional(address, start);
        put_optional(size, length as usize);
        Ok(())
    }

    fn cuKernelGetFunction(out: *mut CUfunction, kernel: CUkernel) {
        let state = state()?;
        state.current()?;
        state.functions.get(kernel)?;
        put(out, kernel.cast())
    }

    fn cuKernelGetLibrary(out: *mut CUlibrary, kernel: CUkernel) {
        let owner = state()?.functions.get(kernel)?.owner;
        if !state()?.libraries.contains(owner) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        put(out, as_pointer(owner))
    }
}
