//! Managed memory: where it lives, and what moves it. What has moved to the GPU stays there: the real driver keeps such memory for later
//! use even when its contents go back to the host (seen on driver 580, H200).

use simgpu_device::Visibility;

use super::Kind;
use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE};

const SET_READ_MOSTLY: u32 = 1;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;

/// The GPU uses a managed range: it moves there, which only the GPU's total shows, unless it prefers the host.
pub fn migrate_on_gpu_access(address: u64) -> CudaResult {
    migrate_if(address, |prefers_host| !prefers_host)
}

/// A managed range moves to the GPU, whatever it prefers.
pub fn migrate_to_gpu(address: u64) -> CudaResult {
    migrate_if(address, |_| true)
}

fn migrate_if(address: u64, moves: impl Fn(bool) -> bool) -> CudaResult {
    let driver = driver()?;
    let mut state = state()?;
    let Some(allocation) = state.memory.containing_mut(address) else { return Ok(()) };
    if let Kind::Managed { space, resident: 0, prefers_host } = allocation.kind
        && moves(prefers_host)
        && driver.charge(allocation.ordinal, space, Visibility::Hidden).is_ok()
    {
        allocation.kind = Kind::Managed { space, resident: space, prefers_host };
    }
    Ok(())
}

/// `cuMemAdvise`: what the program says of where a managed range should live; `host` says whether the advice names the host.
pub fn advise_managed(address: u64, advice: u32, host: bool) -> CudaResult {
    let mut state = state()?;
    let Some(Kind::Managed { prefers_host, .. }) = state.memory.containing_mut(address).map(|found| &mut found.kind) else {
        return Err(INVALID_VALUE);
    };
    match advice {
        SET_PREFERRED_LOCATION => *prefers_host = host,
        // The GPU gets a copy of what it reads.
        UNSET_PREFERRED_LOCATION | SET_READ_MOSTLY => *prefers_host = false,
        _ => {}
    }
    Ok(())
}
