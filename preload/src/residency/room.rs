//! Asks the arbiter for room on a device that is full, though the container's limit is not.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::memory::objects::context_table;
use crate::os::clock;
use crate::residency::gate;
use crate::residency::heart::Heart;
use crate::session::{self, Gpu};
use vgpu_cuda_abi::cuda::{Device, OUT_OF_MEMORY, Status};

/// Time between two tries, in nanoseconds.
const RETRY_NS: i64 = 10_000_000;

/// Parts of the names of functions that may take memory on the current device, and that can be called again after they found none.
const TAKERS: &[&str] = &[
    "Alloc",
    "ArrayCreate",
    "Array3DCreate",
    "PoolCreate",
    "StreamCreate",
    "GreenCtxCreate",
    "Load",
    "GetFunction",
    "GetModule",
    "GetGlobal",
    "SetLimit",
    "Instantiate",
    "GraphUpload",
    "LaunchKernel",
    "GraphLaunch",
];

/// Returns true if the function of the driver may take memory on the current device, and can be called again after it found none. Not so
/// those that change something before they fail (the end of a capture, copies in batches), and those that name a device, whose handlers
/// ask for room there.
pub const fn may_repeat(symbol: &str) -> bool {
    let mut part = 0;
    while part < TAKERS.len() {
        if contains(symbol, TAKERS[part]) {
            return true;
        }
        part += 1;
    }
    false
}

/// Returns true if `text` contains `part`; at compile time, too.
pub const fn contains(text: &str, part: &str) -> bool {
    let (text, part, mut at) = (text.as_bytes(), part.as_bytes(), 0);
    while at + part.len() <= text.len() {
        let mut same = 0;
        while same < part.len() && text[at + same] == part[same] {
            same += 1;
        }
        if same == part.len() {
            return true;
        }
        at += 1;
    }
    false
}

/// Makes a call that takes memory on `device`, or on the current one; while the device has no room, asks for some and repeats the call.
/// Between the calls the process is outside of the gate, so of two processes that wait for room both can leave.
#[inline(always)]
pub fn with_room(device: Option<Device>, call: impl Fn() -> Status) -> Status {
    match call() {
        OUT_OF_MEMORY if gate::get().is_some() => find(device, call),
        status => status,
    }
}

/// See [`with_room`], after the first try.
#[cold]
fn find(device: Option<Device>, call: impl Fn() -> Status) -> Status {
    let named = |device| session::ready()?.gpu(device);
    let current = || context_table::current().ok().map(|current| current.gpu);
    let first = || session::ready()?.gpus().iter().find(|gpu| gpu.is_overcommitted());
    let gpu = device.map_or_else(|| current().or_else(first), named).filter(|gpu| gpu.is_overcommitted());
    let Some(mut request) = gpu.map(Request::new) else { return OUT_OF_MEMORY };
    loop {
        if !request.ask() {
            return OUT_OF_MEMORY;
        }
        match call() {
            OUT_OF_MEMORY => {}
            status => return status,
        }
    }
}

/// A call that waits for room.
#[derive(Debug)]
pub struct Request<'a> {
    /// The device that is full.
    gpu: &'a Gpu,
    /// Whether the arbiter lives.
    heart: Heart,
}

impl<'a> Request<'a> {
    /// Begins to ask for room on a device.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self { gpu, heart: Heart::new() }
    }

    /// Returns true if room is asked for on this device.
    pub fn is_on(&self, device: Device) -> bool {
        self.gpu.device == device
    }

    /// Asks, and sleeps for a while. Returns false if there will be no room: the arbiter is gone, or found nobody who can leave. An arbiter
    /// that has not met this container yet is waited for.
    pub fn ask(&mut self) -> bool {
        let turn = session::ready().and_then(|session| session.limits.turn(self.gpu.uuid));
        if !self.heart.is_alive(turn.map_or(0, |turn| turn.beat.load(Relaxed)), clock::monotonic()) {
            return false;
        }
        let number = self.gpu.account.room_wanted.fetch_add(1, AcqRel).wrapping_add(1);
        clock::nap(RETRY_NS);
        // Numbers wrap around: the refused one is this one, or a later one.
        turn.is_none_or(|turn| (turn.no_room.load(Acquire).wrapping_sub(number) as i32) < 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_something_before_they_fail_are_not_repeated() {
        let repeated = ["cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuModuleLoadData", "cuLaunchKernelEx", "cuGraphInstantiate_v2"];
        assert!(repeated.into_iter().all(may_repeat));
        let never =
            ["cuStreamEndCapture", "cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync_v2", "cuMemFree_v2", "cuMemCreate", "cuCtxCreate_v4"];
        assert!(!never.into_iter().any(may_repeat));
    }
}
