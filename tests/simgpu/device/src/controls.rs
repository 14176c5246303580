//! Controls of the scheduler: the time slice of a process, and switching it off and on.
//!
//! A change takes effect at an exact instant, as operations do: switching off at the end of the time that the control takes. A process is
//! thus on in one interval, of which the slot stores both ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::futex;
use crate::layout::{Gpu, SlotGpu};
use crate::scheduler::now_ns;
use crate::slot::Slot;

/// Shortest time slice, ns. With none, the GPU would only change hands.
const SHORTEST_SLICE_NS: u64 = 1_000;
/// Longest time for which [`Slot::switch_off`] waits for the thread that runs the work, ns.
const LEAVE_TIMEOUT_NS: u64 = 1_000_000_000;

impl Gpu {
    /// Returns the instant at which the owner's time slice ends, ns.
    pub fn slice_end_ns(&self) -> u64 {
        self.slice_start_ns.load(Ordering::Relaxed).saturating_add(self.slice_ns.load(Ordering::Relaxed))
    }
}

impl SlotGpu {
    /// Sets the state of a new process: on, with the default time slice.
    pub fn reset_controls(&self, slice_ns: u64) {
        self.slice_ns.store(slice_ns, Ordering::Relaxed);
        self.copy_slice_ns.store(0, Ordering::Relaxed);
        self.on_from_ns.store(0, Ordering::Relaxed);
        self.off_from_ns.store(u64::MAX, Ordering::Relaxed);
        self.times_off.store(0, Ordering::Relaxed);
    }

    /// Returns whether the process may run at this instant, ns.
    pub fn is_on_at(&self, instant: u64) -> bool {
        (self.on_from_ns.load(Ordering::Relaxed)..self.off_from_ns.load(Ordering::Relaxed)).contains(&instant)
    }
}

impl Slot {
    /// Sets the time slice of this process on a GPU, ns; `None` sets the machine's. It takes effect at the next slice.
    pub fn set_slice(&self, gpu: usize, slice_ns: Option<u64>) {
        let slice_ns = slice_ns.unwrap_or(self.device.config().slice_ns).max(SHORTEST_SLICE_NS);
        self.state().gpus[gpu].slice_ns.store(slice_ns, Ordering::Relaxed);
    }

    /// Publishes the longest time slice of the groups of this process that copy on a GPU, ns. Copies do not share the simulated GPU's time.
    pub fn publish_copy_slice(&self, gpu: usize, slice_ns: u64) {
        self.state().gpus[gpu].copy_slice_ns.store(slice_ns, Ordering::Relaxed);
    }

    /// Switches this process off on a GPU, which takes `cost_ns`: other processes get the GPU, and work that is interrupted continues after
    /// [`Slot::switch_on`]. If `ends_slice`, the work goes on to the end of its time slice. Without that it has left the GPU on return.
    pub fn switch_off(&self, gpu: usize, cost_ns: u64, ends_slice: bool) {
        let (shared, held) = (&self.device.state.gpus[gpu], &self.state().gpus[gpu]);
        let guard = shared.scheduler.lock(|| ());
        let done_ns = now_ns() + cost_ns;
        let is_owner = shared.owner.load(Ordering::Relaxed) == self.owner_tag();
        let slice_end_ns = if is_owner && ends_slice { shared.slice_end_ns() } else { 0 };
        if held.off_from_ns.fetch_min(done_ns.max(slice_end_ns), Ordering::Relaxed) == u64::MAX {
            held.times_off.fetch_add(1, Ordering::Relaxed);
        }
        drop(guard);
        // The thread that runs the work computes its goal again.
        futex::wake_all(&shared.wakeups);
        sleep_until(done_ns);
        if !ends_slice {
            self.wait_until_left(shared, held, done_ns + LEAVE_TIMEOUT_NS);
        }
    }

    /// Switches this process on, which takes `cost_ns`. Does nothing if it is on, except taking that time.
    pub fn switch_on(&self, gpu: usize, cost_ns: u64) {
        let (shared, held) = (&self.device.state.gpus[gpu], &self.state().gpus[gpu]);
        let guard = shared.scheduler.lock(|| ());
        let now = now_ns();
        if now >= held.off_from_ns.swap(u64::MAX, Ordering::Relaxed) {
            held.on_from_ns.store(now + cost_ns, Ordering::Relaxed);
        }
        drop(guard);
        sleep_until(now + cost_ns);
        // The threads of this process continue, and an owner that runs without a slice limit learns that it is not alone.
        futex::wake_all(&shared.wakeups);
    }

    /// Returns whether this process is switched off on a GPU.
    #[must_use]
    pub fn is_off(&self, gpu: usize) -> bool {
        !self.state().gpus[gpu].is_on_at(now_ns())
    }

    /// Waits until this process does not own the GPU: its thread may wake late.
    fn wait_until_left(&self, shared: &Gpu, held: &SlotGpu, until_ns: u64) {
        while now_ns() < until_ns {
            let guard = shared.scheduler.lock(|| ());
            if shared.owner.load(Ordering::Relaxed) != self.owner_tag() || held.is_on_at(now_ns()) {
                return;
            }
            let seen = shared.wakeups.load(Ordering::Acquire);
            drop(guard);
            futex::wait_until(&shared.wakeups, seen, until_ns);
        }
    }
}

fn sleep_until(instant: u64) {
    std::thread::sleep(Duration::from_nanos(instant.saturating_sub(now_ns())));
}
