//! Green contexts: enough to create and destroy one. They partition the multiprocessors of a GPU and use its primary context.

use std::ffi::c_void;

use cudarc::driver::sys::{CUcontext, CUgreenCtx, CUstream};
use simgpu_device::Visibility;

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, get, put, put_optional, read_slice};
use crate::handles::as_pointer;

/// Bytes charged for the first green context of a GPU. Destroying it releases nothing.
const FIRST_CONTEXT_BYTES: u64 = 4 << 20;
/// Size of `CUdevResource`.
const RESOURCE_BYTES: usize = size_of::<cudarc::driver::sys::CUdevResource>();
const SM_COUNT_OFFSET: usize = 96;

fn write_sm_count(resource: *mut c_void, count: u32) {
    // SAFETY: by CUDA's contract a whole CUdevResource; the number of multiprocessors is the first field of its union.
    unsafe {
        resource.cast::<u8>().write_bytes(0, RESOURCE_BYTES);
        resource.cast::<u32>().write(1);
        resource.byte_add(SM_COUNT_OFFSET).cast::<u32>().write(count);
    }
}

fn read_sm_count(resource: *const c_void) -> CudaResult<u32> {
    get(resource.cast::<u32>())?;
    // SAFETY: as in `write_count`.
    Ok(unsafe { resource.byte_add(SM_COUNT_OFFSET).cast::<u32>().read() })
}

api! {
    fn cuDeviceGetDevResource(device: i32, out: *mut c_void, kind: u32) {
        let driver = driver()?;
        driver.gpu_index(device)?;
        if out.is_null() || kind != 1 {
            return Err(INVALID_VALUE);
        }
        write_sm_count(out, driver.device().config().multiprocessors as u32);
        Ok(())
    }

    fn cuDevSmResourceSplitByCount(out: *mut c_void, groups: *mut u32, input: *const c_void, rest: *mut c_void, _flags: u32, least: u32) {
        let all = read_sm_count(input)?;
        let each = least.next_multiple_of(8).max(8);
        let most = all / each;
        let wanted = if out.is_null() { most } else { get(groups)?.min(most) };
        put(groups, wanted)?;
        for index in 0..if out.is_null() { 0 } else { wanted as usize } {
            // SAFETY: by CUDA's contract `out` has as many elements as the caller requested.
            write_sm_count(unsafe { out.byte_add(index * RESOURCE_BYTES) }, each);
        }
        if !rest.is_null() {
            write_sm_count(rest, all - wanted * each);
        }
        Ok(())
    }

    fn cuDevResourceGenerateDesc(out: *mut *mut c_void, resources: *const c_void, count: u32) {
        read_slice(resources.cast::<u8>(), count as usize)?;
        put(out, as_pointer(crate::handles::new_handle()))
    }

    fn cuGreenCtxCreate(out: *mut CUgreenCtx, description: *mut c_void, device: i32, flags: u32) {
        let driver = driver()?;
        driver.gpu_index(device)?;
        if out.is_null() || description.is_null() || flags != 1 {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        if !state.green_charged.contains(&device) {
            driver.charge(device, FIRST_CONTEXT_BYTES, Visibility::Visible)?;
            state.green_charged.push(device);
        }
        let handle = state.green_contexts.add(device);
        put(out, as_pointer(handle))
    }

    fn cuGreenCtxDestroy(context: CUgreenCtx) { state()?.green_contexts.remove(context).map(|_| ()) }

    fn cuCtxFromGreenCtx(out: *mut CUcontext, context: CUgreenCtx) {
        let device = *state()?.green_contexts.get(context)?;
        put(out, as_pointer(crate::context::active_primary(device)?))
    }

    fn cuGreenCtxStreamCreate(out: *mut CUstream, context: CUgreenCtx, flags: u32, priority: i32) {
        state()?.green_contexts.get(context)?;
        crate::stream::create(out, flags, priority)
    }

    fn cuStreamGetGreenCtx(_stream: CUstream, out: *mut CUgreenCtx) {
        driver()?;
        put_optional(out, std::ptr::null_mut());
        Ok(())
    }
}
