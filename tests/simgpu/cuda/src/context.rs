//! Contexts: primary contexts, created contexts, and the stack of current contexts of each thread.

use std::cell::RefCell;
use std::ffi::c_void;

use cudarc::driver::sys::{CUcontext, CUresult};
use simgpu_device::Visibility;

use crate::driver::{Driver, State, driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, put, put_optional};
use crate::handles::{as_pointer, new_handle};
use crate::objects::{Context, Limits, PrimaryContext, SmallHeap};
use crate::rm::kernel::Drain;
use crate::stream;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

const VALID_FLAGS: u32 = 0x1ff;

fn top() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

fn set_top(handle: usize) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

impl State {
    /// Returns the current context of the calling thread.
    pub fn current(&self) -> CudaResult<usize> {
        match top() {
            0 => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            handle if self.contexts.live.contains(handle) => Ok(handle),
            _ => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }

    /// Returns the current context of the calling thread and the ordinal of its GPU.
    pub fn current_gpu(&self) -> CudaResult<(usize, i32)> {
        let handle = self.current()?;
        Ok((handle, self.context(handle)?.ordinal))
    }

    /// Returns a context by its handle.
    pub fn context(&self, handle: usize) -> CudaResult<&Context> {
        self.contexts.live.get(as_pointer::<c_void>(handle)).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Returns a context by its handle, mutably.
    pub fn context_mut(&mut self, handle: usize) -> CudaResult<&mut Context> {
        self.contexts.live.get_mut(as_pointer::<c_void>(handle)).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    fn create_context(&mut self, driver: &Driver, ordinal: i32, flags: u32, primary: bool, handle: Option<usize>) -> CudaResult<usize> {
        let gpu = driver.gpu_index(ordinal)?;
        let config = driver.device().config();
        std::thread::sleep(std::time::Duration::from_nanos(config.context_ns));
        // Counted before it is charged: a process killed in between would hold memory without being listed.
        driver.slot.count_context(gpu, true);
        let hidden = || {
            driver
                .charge(ordinal, config.context_hidden_bytes, Visibility::Hidden)
                .inspect_err(|_| driver.release(ordinal, config.context_bytes, Visibility::Visible))
        };
        driver
            .charge(ordinal, config.context_bytes, Visibility::Visible)
            .and_then(|()| hidden())
            .inspect_err(|_| driver.slot.count_context(gpu, false))?;
        self.contexts.ids += 1;
        let context = Context {
            ordinal,
            id: self.contexts.ids,
            flags,
            is_primary: primary,
            api_version: 3020,
            small_heap: SmallHeap::default(),
            limits: Limits::default(),
            heap_used: false,
            limits_bytes: 0,
            graph_bytes: 0,
            malloc_bytes: 0,
            groups: if config.no_ioctls == 0 { self.client.open_context(gpu) } else { Vec::new() },
        };
        Ok(self.contexts.live.add_as(handle.unwrap_or_else(new_handle), context))
    }

    /// Resolves an optional context argument: null means the current context.
    pub fn context_or_current(&self, context: CUcontext) -> CudaResult<usize> {
        if context.is_null() { self.current() } else { self.context(context.addr()).map(|_| context.addr()) }
    }

    fn primary_is_active(&mut self, driver: &Driver, ordinal: i32) -> CudaResult<bool> {
        let handle = self.primary(driver, ordinal)?.handle;
        Ok(self.contexts.live.contains(handle))
    }

    fn destroy_context(&mut self, driver: &Driver, handle: usize) -> CudaResult {
        self.unload_modules_of(driver, handle);
        self.free_context_memory(driver, handle);
        let context = self.contexts.live.remove(as_pointer::<c_void>(handle)).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        self.client.close_context(&context.groups);
        let config = driver.device().config();
        let own = config.context_bytes + context.graph_bytes + context.malloc_bytes;
        driver.release(context.ordinal, own.saturating_add_signed(context.limits_bytes), Visibility::Visible);
        driver.release(context.ordinal, config.context_hidden_bytes, Visibility::Hidden);
        driver.slot.count_context(driver.gpu_index(context.ordinal)?, false);
        Ok(())
    }

    fn primary(&mut self, driver: &Driver, ordinal: i32) -> CudaResult<&mut PrimaryContext> {
        driver.gpu_index(ordinal)?;
        self.contexts.primaries.resize(driver.visible_gpus.len(), PrimaryContext::default());
        usize::try_from(ordinal).ok().and_then(|index| self.contexts.primaries.get_mut(index)).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}

fn create(out: *mut CUcontext, flags: u32, ordinal: i32) -> CudaResult {
    let driver = driver()?;
    if out.is_null() || flags & !VALID_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let handle = state()?.create_context(driver, ordinal, flags, false, None)?;
    STACK.with_borrow_mut(|stack| stack.push(handle));
    put(out, as_pointer(handle))
}

fn destroy(context: CUcontext) -> CudaResult {
    let driver = driver()?;
    if context.is_null() {
        return Err(INVALID_VALUE);
    }
    let ordinal = {
        let state = state()?;
        let found = state.context(context.addr())?;
        if found.is_primary {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        found.ordinal
    };
    let _drain = Drain::begin(driver, driver.gpu_index(ordinal)?);
    stream::destroy_context_streams(context.addr())?;
    state()?.destroy_context(driver, context.addr())?;
    if top() == context.addr() {
        set_top(0);
    }
    Ok(())
}

api! {
    fn cuCtxCreate(out: *mut CUcontext, flags: u32, device: i32) { create(out, flags, device) }
    fn cuCtxCreate_v2(out: *mut CUcontext, flags: u32, device: i32) { create(out, flags, device) }
    fn cuCtxCreate_v3(out: *mut CUcontext, _affinity: *mut c_void, _count: i32, flags: u32, device: i32) { create(out, flags, device) }
    fn cuCtxCreate_v4(out: *mut CUcontext, _parameters: *mut c_void, flags: u32, device: i32) { create(out, flags, device) }
    fn cuCtxDestroy(context: CUcontext) { destroy(context) }
    fn cuCtxDestroy_v2(context: CUcontext) { destroy(context) }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        state()?.context(context.addr())?;
        STACK.with_borrow_mut(|stack| stack.push(context.addr()));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: *mut CUcontext) {
        driver()?;
        let handle = STACK.with_borrow_mut(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        put_optional(out, as_pointer(handle));
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let state = state()?;
        if !context.is_null() {
            state.context(context.addr())?;
        }
        set_top(context.addr());
        Ok(())
    }

    fn cuCtxGetCurrent(out: *mut CUcontext) {
        driver()?;
        put(out, as_pointer(top()))
    }

    fn cuCtxGetDevice(out: *mut i32) {
        let ordinal = state()?.current_gpu()?.1;
        put(out, ordinal)
    }

    fn cuCtxGetDevice_v2(out: *mut i32, context: CUcontext) {
        let state = state()?;
        let handle = if context.is_null() { state.current()? } else { context.addr() };
        put(out, state.context(handle)?.ordinal)
    }

    fn cuCtxGetId(context: CUcontext, out: *mut u64) {
        let state = state()?;
        let handle = if context.is_null() { state.current()? } else { context.addr() };
        put(out, state.context(handle)?.id)
    }

    fn cuCtxGetFlags(out: *mut u32) {
        let state = state()?;
        put(out, state.context(state.current()?)?.flags)
    }

    fn cuCtxGetApiVersion(context: CUcontext, out: *mut u32) {
        let state = state()?;
        let handle = if context.is_null() { state.current()? } else { context.addr() };
        put(out, state.context(handle)?.api_version)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) {
        state()?.current()?;
        put_optional(least, 0);
        put_optional(greatest, -5);
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: i32) {
        let driver = driver()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let PrimaryContext { flags, mut handle, .. } = *state.primary(driver, device)?;
        if !state.primary_is_active(driver, device)? {
            handle = state.create_context(driver, device, flags, true, Some(handle).filter(|&handle| handle != 0))?;
        }
        let primary = state.primary(driver, device)?;
        primary.handle = handle;
        primary.retain_count += 1;
        put(out, as_pointer(handle))
    }

    fn cuDevicePrimaryCtxRelease(device: i32) { release_primary(device) }
    fn cuDevicePrimaryCtxRelease_v2(device: i32) { release_primary(device) }
    fn cuDevicePrimaryCtxReset(device: i32) { destroy_primary(device) }
    fn cuDevicePrimaryCtxReset_v2(device: i32) { destroy_primary(device) }
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) { set_primary_flags(device, flags) }
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) {
        let driver = driver()?;
        let mut state = state()?;
        put(flags, state.primary(driver, device)?.flags)?;
        put(active, i32::from(state.primary_is_active(driver, device)?))
    }
}

/// Returns the primary context of a GPU. Fails if it is not active.
pub fn active_primary(device: i32) -> CudaResult<usize> {
    let driver = driver()?;
    let mut state = state()?;
    let handle = state.primary(driver, device)?.handle;
    if state.contexts.live.contains(handle) { Ok(handle) } else { Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) }
}

fn release_primary(device: i32) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let primary = state.primary(driver, device)?;
    if primary.retain_count == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    primary.retain_count -= 1;
    let last = primary.retain_count == 0;
    drop(state);
    if last { destroy_primary(device) } else { Ok(()) }
}

fn destroy_primary(device: i32) -> CudaResult {
    let driver = driver()?;
    let primary = *state()?.primary(driver, device)?;
    if !state()?.primary_is_active(driver, device)? {
        return Ok(());
    }
    let _drain = Drain::begin(driver, driver.gpu_index(device)?);
    stream::destroy_context_streams(primary.handle)?;
    state()?.destroy_context(driver, primary.handle)
}

fn set_primary_flags(device: i32, flags: u32) -> CudaResult {
    let driver = driver()?;
    if flags & !VALID_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    state()?.primary(driver, device)?.flags = flags;
    Ok(())
}
