//! Managed memory: where it lives, and what moves it. What has moved to the GPU stays there: the real driver keeps such memory for later
//! use even when its contents go back to the host (seen on driver 580, H200).

use simgpu_device::Part;

use super::Kind;
use crate::driver::{driver, world};
use crate::ffi::{Answer, INVALID_VALUE};

const SET_READ_MOSTLY: u32 = 1;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;

/// The GPU uses a managed range: it moves there, which only the GPU's total shows, unless it prefers the host.
pub fn touch_managed(address: u64) -> Answer {
    move_if(address, |on_host| !on_host)
}

/// A managed range moves to the GPU, whatever it prefers.
pub fn move_managed(address: u64) -> Answer {
    move_if(address, |_| true)
}

fn move_if(address: u64, moves: impl Fn(bool) -> bool) -> Answer {
    let driver = driver()?;
    let mut world = world()?;
    let Some(allocation) = world.memory.around_mut(address) else { return Ok(()) };
    if let Kind::Managed { space, resident: 0, on_host } = allocation.kind
        && moves(on_host)
        && driver.charge(allocation.ordinal, space, Part::Hidden).is_ok()
    {
        allocation.kind = Kind::Managed { space, resident: space, on_host };
    }
    Ok(())
}

/// `cuMemAdvise`: what the program says of where a managed range should live; `host` says whether the advice names the host.
pub fn advise_managed(address: u64, advice: u32, host: bool) -> Answer {
    let mut world = world()?;
    let Some(Kind::Managed { on_host, .. }) = world.memory.around_mut(address).map(|found| &mut found.kind) else {
        return Err(INVALID_VALUE);
    };
    match advice {
        SET_PREFERRED_LOCATION => *on_host = host,
        // The GPU gets a copy of what it reads.
        UNSET_PREFERRED_LOCATION | SET_READ_MOSTLY => *on_host = false,
        _ => {}
    }
    Ok(())
}
