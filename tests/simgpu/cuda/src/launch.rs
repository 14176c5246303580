//! Kernel launches and occupancy.

use std::ffi::c_void;

use cudarc::driver::sys::{CUlaunchConfig, CUresult, CUstream};

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, get, put};
use crate::handles::per_thread_default;
use crate::objects::Work;
use crate::stream::submit::submit;

/// Keys of the `extra` list, which consists of pairs of a key and a pointer.
const EXTRA_END: usize = 0;
const EXTRA_BUFFER: usize = 1;

type Arguments = *mut *mut c_void;

/// Returns the first argument of a kernel, which must be 8 bytes long as that of `spin` is.
fn first_argument(arguments: Arguments, extra: Arguments) -> CudaResult<u64> {
    if !arguments.is_null() {
        return get(get(arguments)?.cast::<u64>());
    }
    let mut at = extra;
    while !at.is_null() && get(at)?.addr() != EXTRA_END {
        // SAFETY: by CUDA's contract the list consists of pairs up to its end key.
        let value = unsafe { at.add(1).read() };
        if get(at)?.addr() == EXTRA_BUFFER {
            return get(value.cast::<u64>());
        }
        // SAFETY: as above.
        at = unsafe { at.add(2) };
    }
    Err(INVALID_VALUE)
}

/// Makes the work for a kernel launch.
pub fn kernel_work(function: usize, grid: [u32; 3], block: [u32; 3], arguments: Arguments, extra: Arguments) -> CudaResult<Work> {
    let driver = driver()?;
    let mut state = state()?;
    let context = state.current()?;
    let handle = function;
    let function = state.function(function, context)?;
    let threads = block.iter().map(|&side| u64::from(side)).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > 1024 || block[2] > 64 || grid[1] > 65535 || grid[2] > 65535 {
        return Err(INVALID_VALUE);
    }
    state.prepare_launch(driver, context, &function)?;
    let config = driver.device().config();
    let ns = if function.name == "spin" { first_argument(arguments, extra)? } else { config.kernel_ns };
    let blocks = grid.iter().fold(1_u64, |all, &side| all.saturating_mul(u64::from(side)));
    let resident = (config.threads_per_multiprocessor / threads).clamp(1, 32) * config.multiprocessors;
    let share_permille = u32::try_from(blocks.saturating_mul(1000) / resident).unwrap_or(u32::MAX).min(1000);
    Ok(Work::Kernel { function: handle, ns: ns.saturating_add(config.launch_ns), share_permille })
}

fn launch(function: *mut c_void, grid: [u32; 3], block: [u32; 3], stream: CUstream, arguments: Arguments, extra: Arguments) -> CudaResult {
    let work = kernel_work(function.addr(), grid, block, arguments, extra)?;
    submit(stream, work)
}

fn launch_ex(config: *const CUlaunchConfig, function: *mut c_void, stream: CUstream, arguments: Arguments, extra: Arguments) -> CudaResult {
    let config = get(config)?;
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    launch(function, grid, [config.blockDimX, config.blockDimY, config.blockDimZ], stream, arguments, extra)
}

api! {
    fn cuLaunchKernel [cuLaunchKernel_ptsz stream] (function: *mut c_void, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32,
        block_y: u32, block_z: u32, _shared: u32, stream: CUstream, arguments: Arguments, extra: Arguments) {
        launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream, arguments, extra)
    }

    fn cuLaunchCooperativeKernel [cuLaunchCooperativeKernel_ptsz stream] (function: *mut c_void, grid_x: u32, grid_y: u32,
        grid_z: u32, block_x: u32, block_y: u32, block_z: u32, _shared: u32, stream: CUstream, arguments: Arguments) {
        launch(function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], stream, arguments, std::ptr::null_mut())
    }

    fn cuLaunchKernelEx(config: *const CUlaunchConfig, function: *mut c_void, arguments: Arguments, extra: Arguments) {
        launch_ex(config, function, get(config)?.hStream, arguments, extra)
    }

    fn cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, function: *mut c_void, arguments: Arguments, extra: Arguments) {
        launch_ex(config, function, per_thread_default(get(config)?.hStream), arguments, extra)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: *mut i32, _function: *mut c_void, block: i32, _shared: usize) {
        occupancy(out, block)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        (out: *mut i32, _function: *mut c_void, block: i32, _shared: usize, _flags: u32) {
        occupancy(out, block)
    }
}

fn occupancy(out: *mut i32, block: i32) -> CudaResult {
    driver()?;
    if !(1..=1024).contains(&block) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    put(out, (2048 / block).min(32))
}
