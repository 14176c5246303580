//! Scheduler: which process owns a GPU, and for how long.
//!
//! GPU time is assigned analytically: an operation starts when it is ready and the GPU's cursor allows, and ends after its duration. The
//! waiting thread then sleeps until that instant, so late wake-ups do not add up. One process owns the GPU at a time. It keeps the GPU
//! while it has work, for at most one time slice of its own if other processes have work too. A process that is switched off leaves the GPU
//! at that instant, as if it had no work until it is switched on.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::futex;
use crate::layout::{Gpu, SlotState};
use crate::locks;
use crate::slot::Slot;

/// Time past its deadline after which other processes take the GPU from its owner, ns. The owner may be stopped; a real GPU would continue.
const OWNER_GRACE_NS: u64 = 10_000_000;
/// Longest time for which a process that is switched off sleeps without looking again, ns.
const OFF_POLL_NS: u64 = 1_000_000_000;

/// Returns the clock of all simulated GPUs: CLOCK_MONOTONIC in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a timespec that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Execution of an operation, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start.
    pub start_ns: u64,
    /// End, or the instant of the interruption.
    pub end_ns: u64,
    /// GPU time that it used.
    pub gpu_ns: u64,
}

impl Slot {
    /// Runs an operation of `duration_ns` that was ready at `ready_ns` on a GPU. Sleeps until it ends and returns its start and end. The
    /// process still owns the GPU afterwards; call [`Slot::set_idle`] when it has no more work.
    pub fn run(&self, gpu: usize, ready_ns: u64, duration_ns: u64) -> (u64, u64) {
        let span = self.run_interruptible(gpu, ready_ns, duration_ns, &AtomicBool::new(false));
        (span.start_ns, span.end_ns)
    }

    /// Runs an operation as [`Slot::run`] does, but returns early if `stop` is set and [`Slot::interrupt`] is called. An operation that is
    /// interrupted because the process is switched off continues when it is on again.
    pub fn run_interruptible(&self, gpu: usize, ready_ns: u64, duration_ns: u64, stop: &AtomicBool) -> Span {
        let shared = &self.device.state.gpus[gpu];
        let own_tag = self.owner_tag();
        let held = &self.state().gpus[gpu];
        let mut remaining_ns = duration_ns;
        let mut start_ns = None;
        let mut guard = shared.scheduler.lock(|| ());
        loop {
            let is_owner = shared.owner.load(Ordering::Relaxed) == own_tag;
            let on_from_ns = held.on_from_ns.load(Ordering::Relaxed);
            let off_from_ns = held.off_from_ns.load(Ordering::Relaxed);
            let ready_ns = ready_ns.max(on_from_ns);
            // The time of an owner whose thread woke late passes on the GPU's clock.
            let at_ns = if is_owner { shared.cursor_ns.load(Ordering::Relaxed).max(ready_ns) } else { now_ns() };
            if at_ns >= off_from_ns || now_ns() < on_from_ns {
                self.leave(gpu, shared, remaining_ns < duration_ns);
                let now = now_ns();
                let seen = shared.wakeups.load(Ordering::Acquire);
                if stop.load(Ordering::Acquire) {
                    return Span { start_ns: start_ns.unwrap_or(now), end_ns: now, gpu_ns: duration_ns - remaining_ns };
                }
                drop(guard);
                futex::wait_until(&shared.wakeups, seen, if now < on_from_ns { on_from_ns } else { now + OFF_POLL_NS });
                guard = shared.scheduler.lock(|| ());
                continue;
            }
            // Another process may have taken this one for stopped and cleared its flag.
            self.set_runnable(gpu, shared);
            if !is_owner && !self.try_acquire(shared, ready_ns) {
                let seen = shared.wakeups.load(Ordering::Acquire);
                let until = shared.owner_deadline_ns.load(Ordering::Relaxed).max(now_ns()) + OWNER_GRACE_NS;
                drop(guard);
                futex::wait_until(&shared.wakeups, seen, until);
                guard = shared.scheduler.lock(|| ());
                continue;
            }
            let position_ns = shared.cursor_ns.load(Ordering::Relaxed).max(ready_ns);
            let is_contended = self.other_runnable(gpu).next().is_some();
            let slice_end_ns = shared.slice_end_ns();
            if is_contended && position_ns >= slice_end_ns {
                self.hand_over(gpu, shared, remaining_ns < duration_ns);
                continue;
            }
            start_ns.get_or_insert(position_ns);
            let end_ns = (position_ns + remaining_ns).min(off_from_ns);
            let goal_ns = if is_contended { end_ns.min(slice_end_ns) } else { end_ns };
            shared.owner_deadline_ns.store(goal_ns, Ordering::Relaxed);
            let seen = shared.wakeups.load(Ordering::Acquire);
            drop(guard);
            let now = now_ns();
            // An interruption before `seen` was read does not end the wait.
            if goal_ns > now && !stop.load(Ordering::Acquire) {
                futex::wait_until(&shared.wakeups, seen, goal_ns);
            }
            guard = shared.scheduler.lock(|| ());
            // It may have been switched off meanwhile.
            let goal_ns = goal_ns.min(held.off_from_ns.load(Ordering::Relaxed)).max(position_ns);
            let reached_ns = now_ns().clamp(position_ns, goal_ns);
            held.busy.add(position_ns, reached_ns);
            shared.busy.add(position_ns, reached_ns);
            remaining_ns -= reached_ns - position_ns;
            if shared.owner.load(Ordering::Relaxed) == own_tag {
                shared.cursor_ns.store(reached_ns, Ordering::Relaxed);
                if !is_contended && self.other_runnable(gpu).next().is_some() {
                    // The GPU became contended: the time slice starts now.
                    shared.slice_start_ns.store(reached_ns.max(shared.slice_start_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
                    shared.slice_ns.store(held.slice_ns.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
            if remaining_ns == 0 || stop.load(Ordering::Acquire) {
                drop(guard);
                return Span { start_ns: start_ns.unwrap_or(position_ns), end_ns: reached_ns, gpu_ns: duration_ns - remaining_ns };
            }
        }
    }

    /// Makes a running [`Slot::run_interruptible`] of this process check its flag.
    pub fn interrupt(&self, gpu: usize) {
        futex::wake_all(&self.device.state.gpus[gpu].wakeups);
    }

    /// Releases the GPU: this process has no more work for it.
    pub fn set_idle(&self, gpu: usize) {
        let shared = &self.device.state.gpus[gpu];
        let _guard = shared.scheduler.lock(|| ());
        self.leave(gpu, shared, false);
    }

    /// Marks this process as having no work, and passes the GPU on if it owns it.
    fn leave(&self, gpu: usize, shared: &Gpu, interrupts: bool) {
        self.state().gpus[gpu].runnable.store(0, Ordering::Relaxed);
        if shared.owner.load(Ordering::Relaxed) == self.owner_tag() {
            self.hand_over(gpu, shared, interrupts);
        }
    }

    /// Returns the value of [`Gpu::owner`] that names this process.
    pub(crate) fn owner_tag(&self) -> u32 {
        u32::try_from(self.index + 1).unwrap_or(0)
    }

    /// Marks this process as having work. Wakes an owner that runs without a slice limit.
    fn set_runnable(&self, gpu: usize, shared: &Gpu) {
        let before = self.state().gpus[gpu].runnable.swap(1, Ordering::Relaxed);
        if before == 0 && ![0, self.owner_tag()].contains(&shared.owner.load(Ordering::Relaxed)) {
            futex::wake_all(&shared.wakeups);
        }
    }

    /// Makes this process the owner if there is none, or if the owner is past its deadline by more than the grace time.
    fn try_acquire(&self, shared: &Gpu, ready_ns: u64) -> bool {
        let owner = shared.owner.load(Ordering::Relaxed);
        let is_overdue = now_ns() > shared.owner_deadline_ns.load(Ordering::Relaxed) + OWNER_GRACE_NS;
        if owner != 0 && !is_overdue {
            return false;
        }
        if is_overdue && owner != 0 {
            // The stopped or dead process is not scheduled until it marks itself runnable again.
            let gpu = self.gpu_index(shared);
            self.device.state.slots[owner as usize - 1].gpus[gpu].runnable.store(0, Ordering::Relaxed);
        }
        self.assign(shared, self.owner_tag(), ready_ns, false);
        true
    }

    /// Passes the GPU to the next process that has work, or leaves it without an owner.
    fn hand_over(&self, gpu: usize, shared: &Gpu, interrupts: bool) {
        match self.other_runnable(gpu).next() {
            Some(next) => self.assign(shared, u32::try_from(next + 1).unwrap_or(0), 0, interrupts),
            None => shared.owner.store(0, Ordering::Relaxed),
        }
        futex::wake_all(&shared.wakeups);
    }

    fn gpu_index(&self, shared: &Gpu) -> usize {
        self.device.state.gpus.iter().position(|gpu| std::ptr::eq(gpu, shared)).unwrap_or(0)
    }

    fn assign(&self, shared: &Gpu, tag: u32, ready_ns: u64, interrupts: bool) {
        let last = shared.last_owner.swap(tag, Ordering::Relaxed);
        let config = self.device.config();
        let loss_ns = match last {
            _ if interrupts => config.switch_ns + config.preempt_ns,
            0 => 0,
            last if last == tag => 0,
            _ => config.switch_ns,
        };
        let start_ns = shared.cursor_ns.load(Ordering::Relaxed).max(ready_ns) + loss_ns;
        shared.cursor_ns.store(start_ns, Ordering::Relaxed);
        shared.slice_start_ns.store(start_ns, Ordering::Relaxed);
        let slice_ns = &self.device.state.slots[tag as usize - 1].gpus[self.gpu_index(shared)].slice_ns;
        shared.slice_ns.store(slice_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.owner_deadline_ns.store(start_ns.max(now_ns()), Ordering::Relaxed);
        shared.owner.store(tag, Ordering::Relaxed);
    }

    /// Iterates over the other processes that have work for a GPU and are not switched off, round-robin from the slot after this one.
    fn other_runnable(&self, gpu: usize) -> impl Iterator<Item = usize> {
        let device: &Device = &self.device;
        let count = device.state.high_water.load(Ordering::Relaxed) as usize;
        let now = now_ns();
        let runnable = move |slot: &SlotState| {
            let held = &slot.gpus[gpu];
            slot.pid.load(Ordering::Relaxed) != 0 && held.runnable.load(Ordering::Relaxed) != 0 && held.is_on_at(now)
        };
        let order = (1..count).map(move |step| (self.index + step) % count);
        order.filter(move |&index| {
            let slot = &device.state.slots[index];
            let alive = || device.descriptor().is_none_or(|fd| locks::is_locked(fd, index));
            runnable(slot) && alive()
        })
    }
}
