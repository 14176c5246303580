//! Legacy IPC handles: another process may map an allocation. It stays charged to the process that allocated it.

use cudarc::driver::sys::{CUipcMemHandle, CUresult};

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE, OUT_OF_MEMORY, put};
use crate::objects::{Kind, granules};

const MAGIC: u64 = 0x5349_4d49_5043_0001;

/// Contents of a handle: magic, PID of the exporter, start of the allocation, its size.
type Words = [u64; 8];

fn open(out: *mut u64, handle: CUipcMemHandle, flags: u32) -> CudaResult {
    driver()?;
    let mut state = state()?;
    let (context, ordinal) = state.current_gpu()?;
    // SAFETY: both types are 64 bytes without padding or invalid values.
    let words = unsafe { std::mem::transmute::<CUipcMemHandle, Words>(handle) };
    if flags > 1 || words[0] != MAGIC {
        return Err(INVALID_VALUE);
    }
    if words[1] == u64::from(std::process::id()) {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let space = granules(words[3])?;
    let address = state.memory.arena.take(space).ok_or(OUT_OF_MEMORY)?;
    state.memory.add(address, words[3], ordinal, context, Kind::Imported { space });
    put(out, address)
}

api! {
    fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, address: u64) {
        let state = state()?;
        let (start, found) = state.memory.containing(address).ok_or(INVALID_VALUE)?;
        if !matches!(found.kind, Kind::Small | Kind::Granules(_)) {
            return Err(INVALID_VALUE);
        }
        let words: Words = [MAGIC, u64::from(std::process::id()), start, found.size, 0, 0, 0, 0];
        // SAFETY: both types are 64 bytes without padding or invalid values.
        put(out, unsafe { std::mem::transmute::<Words, CUipcMemHandle>(words) })
    }

    fn cuIpcOpenMemHandle(out: *mut u64, handle: CUipcMemHandle, flags: u32) { open(out, handle, flags) }
    fn cuIpcOpenMemHandle_v2(out: *mut u64, handle: CUipcMemHandle, flags: u32) { open(out, handle, flags) }

    fn cuIpcCloseMemHandle(address: u64) {
        let mut state = state()?;
        let found = state.memory.at(address).map(|found| found.kind.clone());
        let Some(Kind::Imported { space }) = found else { return Err(INVALID_VALUE) };
        state.memory.remove(address);
        state.memory.arena.release(address, space);
        Ok(())
    }
}
