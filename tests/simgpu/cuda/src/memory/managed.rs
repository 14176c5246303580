//! Migration of managed memory. Memory that has migrated to the GPU stays charged: the real driver keeps it for later use even if its
//! contents move back to the host (driver 580, H200).

use simgpu_device::Visibility;

use crate::driver::{driver, state};
use crate::ffi::{CudaResult, INVALID_VALUE};
use crate::objects::Kind;

const SET_READ_MOSTLY: u32 = 1;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;

/// Migrates a managed range to the GPU on access by the GPU, unless it prefers the host. Only the GPU's total includes it.
pub fn migrate_on_gpu_access(address: u64) -> CudaResult {
    migrate_if(address, |prefers_host| !prefers_host)
}

/// Migrates a managed range to the GPU regardless of its preferred location.
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

/// Applies `cuMemAdvise` to a managed range. `host`: the advice names the host.
pub fn advise_managed(address: u64, advice: u32, host: bool) -> CudaResult {
    let mut state = state()?;
    let Some(Kind::Managed { prefers_host, .. }) = state.memory.containing_mut(address).map(|found| &mut found.kind) else {
        return Err(INVALID_VALUE);
    };
    match advice {
        SET_PREFERRED_LOCATION => *prefers_host = host,
        // With read-mostly the GPU gets a copy of the pages that it reads.
        UNSET_PREFERRED_LOCATION | SET_READ_MOSTLY => *prefers_host = false,
        _ => {}
    }
    Ok(())
}
