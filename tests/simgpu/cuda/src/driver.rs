//! State of the driver in this process, and `cuInit`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::CUresult;
use simgpu_device::{Device, OutOfMemory, Slot, Visibility, config, default_path, face};

use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, put};
use crate::handles::Handles;
use crate::objects::{Contexts, Function, Graph, GraphExec, GraphMemory, Library, Memory, Module, Pools, SharedQueues};
use crate::rm::client::Client;

/// Driver of this process, created by `cuInit`.
pub struct Driver {
    pub slot: Slot,
    /// Physical indices of the visible GPUs, by ordinal.
    pub visible_gpus: Vec<usize>,
    pub streams: SharedQueues,
    state: Mutex<State>,
}

/// All objects that the program created.
#[derive(Default)]
pub struct State {
    pub contexts: Contexts,
    pub memory: Memory,
    pub pools: Pools,
    pub modules: Handles<Module>,
    pub libraries: Handles<Library>,
    pub functions: Handles<Function>,
    pub graphs: Handles<Graph>,
    pub graph_execs: Handles<GraphExec>,
    /// Green contexts, with the ordinals of their GPUs.
    pub green_contexts: Handles<i32>,
    /// Ordinals of the GPUs on which a green context was charged.
    pub green_charged: Vec<i32>,
    /// Graph memory by ordinal.
    pub graph_memory: HashMap<i32, GraphMemory>,
    /// Objects of the resource manager.
    pub client: Client,
}

static DRIVER: OnceLock<Result<Driver, CUresult>> = OnceLock::new();
static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Returns the driver, if `cuInit` succeeded in this process. A forked child is not initialized.
pub fn driver() -> CudaResult<&'static Driver> {
    match DRIVER.get() {
        Some(Ok(driver)) if !IN_CHILD.load(Ordering::Relaxed) => Ok(driver),
        _ => Err(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// Locks the objects of the driver. No thread blocks while it holds the lock.
pub fn state() -> CudaResult<MutexGuard<'static, State>> {
    Ok(driver()?.state.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Driver {
    fn start() -> Result<Driver, CUresult> {
        let device = Arc::new(Device::open(&default_path()).map_err(|_| CUresult::CUDA_ERROR_NO_DEVICE)?);
        let choice = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let visible_gpus = visible_gpus(choice.as_deref(), device.gpus());
        if visible_gpus.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        let slot = Slot::attach(device).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        // SAFETY: the registered function lives as long as the library.
        unsafe { libc::pthread_atfork(None, None, Some(mark_child)) };
        Ok(Driver { slot, visible_gpus, streams: SharedQueues::default(), state: Mutex::default() })
    }

    /// Returns the physical index of the GPU with this ordinal.
    pub fn gpu_index(&self, ordinal: i32) -> CudaResult<usize> {
        let index = usize::try_from(ordinal).ok();
        index.and_then(|index| self.visible_gpus.get(index).copied()).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Charges bytes of the GPU with this ordinal.
    pub fn charge(&self, ordinal: i32, bytes: u64, visibility: Visibility) -> CudaResult {
        let gpu = self.gpu_index(ordinal)?;
        self.slot.charge(gpu, bytes, visibility).map_err(|OutOfMemory| OUT_OF_MEMORY)
    }

    /// Releases bytes of the GPU with this ordinal.
    pub fn release(&self, ordinal: i32, bytes: u64, visibility: Visibility) {
        if let Ok(gpu) = self.gpu_index(ordinal) {
            self.slot.release(gpu, bytes, visibility);
        }
    }

    pub fn device(&self) -> &Device {
        self.slot.device()
    }
}

extern "C" fn mark_child() {
    // The child keeps the state file open: as with the real driver, memory stays allocated while a forked child of its owner lives.
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Parses `CUDA_VISIBLE_DEVICES`: indices or (prefixes of) UUIDs, up to the first that does not exist.
fn visible_gpus(choice: Option<&str>, gpus: usize) -> Vec<usize> {
    let Some(choice) = choice else { return (0..gpus).collect() };
    let mut chosen = Vec::new();
    for word in choice.split(',').map(str::trim) {
        let by_uuid = || (0..gpus).find(|&gpu| word.len() > 4 && config::uuid_text(gpu).starts_with(word));
        let found = word.parse::<usize>().ok().filter(|&index| index < gpus).or_else(by_uuid);
        match found {
            Some(gpu) if !chosen.contains(&gpu) => chosen.push(gpu),
            // CUDA exposes no GPU if one is listed twice.
            Some(_) => return Vec::new(),
            None => break,
        }
    }
    chosen
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        DRIVER.get_or_init(Driver::start).as_ref().map_err(|&error| error)?;
        driver().map(|_| ())
    }

    fn cuDriverGetVersion(version: *mut i32) {
        put(version, face::cuda_version())
    }
}

#[cfg(test)]
mod tests {
    use super::visible_gpus;

    #[test]
    fn visible_devices_select_and_reorder() {
        let cases: [(Option<&str>, &[usize]); 9] = [
            (None, &[0, 1, 2]),
            (Some(""), &[]),
            (Some("2,0"), &[2, 0]),
            (Some(" 1 "), &[1]),
            (Some("0,-1,1"), &[0]),
            (Some("0,7,1"), &[0]),
            (Some("0,0"), &[]),
            (Some("GPU-516d6770-7500-4000-8000-000000000001"), &[1]),
            (Some("MIG-1"), &[]),
        ];
        for (choice, expected) in cases {
            assert_eq!(visible_gpus(choice, 3), expected, "{choice:?}");
        }
    }
}
