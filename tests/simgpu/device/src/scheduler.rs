//! Whose turn it is on a GPU.
//!
//! Time is given out analytically: an operation starts when it is ready and the GPU's cursor allows, and ends after its duration, whatever
//! the host's timers do; who waits for it then sleeps until that instant. Late wake-ups therefore do not add up. Only one process has the
//! GPU at a time. It keeps it while it has work, for a slice at most while others have work too.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::layout::{Gpu, SlotState};
use crate::{Device, Slot, locks};

/// How long past its time an owner may be before the others take the GPU from it (it may be stopped; the GPU would go on).
const OWNER_GRACE_NS: u64 = 10_000_000;

/// The clock of all simulated GPUs: CLOCK_MONOTONIC in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a timespec that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `word` is no longer `seen`, somebody rings it, or the clock says `until`.
fn futex_wait_until(word: &AtomicU32, seen: u32, until: u64) {
    let time = libc::timespec { tv_sec: (until / 1_000_000_000) as i64, tv_nsec: (until % 1_000_000_000) as i64 };
    let operation = libc::FUTEX_WAIT_BITSET;
    // SAFETY: the futex word and the time live through the call; an absolute time goes with the BITSET form.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const time, std::ptr::null::<u32>(), u32::MAX);
    }
}

fn futex_wake_all(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    // SAFETY: wakes waiters on a word in the shared mapping.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// When an operation ran, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub start_ns: u64,
    /// When it ended or was left.
    pub end_ns: u64,
    /// How long it had the GPU.
    pub gpu_ns: u64,
}

impl Slot {
    /// Runs an operation of `duration` ns that was ready at `ready` on a GPU and returns when it ended (by the clock also for the
    /// caller: it sleeps until then). The process keeps its turn; call [`Slot::rest`] when there is nothing more to do.
    pub fn run(&self, gpu: usize, ready_ns: u64, duration_ns: u64) -> (u64, u64) {
        let span = self.run_interruptible(gpu, ready_ns, duration_ns, &AtomicBool::new(false));
        (span.start_ns, span.end_ns)
    }

    /// The same, but ends early when `stop` is set and [`Slot::nudge`] is called.
    pub fn run_interruptible(&self, gpu: usize, ready_ns: u64, duration_ns: u64, stop: &AtomicBool) -> Span {
        let shared = &self.device.state.gpus[gpu];
        let own_tag = self.owner_tag();
        let slice_ns = self.device.config().slice_ns;
        let mut remaining_ns = duration_ns;
        let mut start_ns = None;
        let mut guard = shared.scheduler.lock(|| ());
        self.set_runnable(gpu, shared);
        loop {
            if shared.owner.load(Ordering::Relaxed) != own_tag && !self.try_acquire(shared, ready_ns) {
                // Who was late on a busy machine may have been taken for stopped: it is back in the game.
                self.set_runnable(gpu, shared);
                let seen = shared.wakeups.load(Ordering::Acquire);
                let until = shared.owner_deadline_ns.load(Ordering::Relaxed).max(now_ns()) + OWNER_GRACE_NS;
                drop(guard);
                futex_wait_until(&shared.wakeups, seen, until);
                guard = shared.scheduler.lock(|| ());
                continue;
            }
            let position_ns = shared.cursor_ns.load(Ordering::Relaxed).max(ready_ns);
            let is_contended = self.other_runnable(gpu).next().is_some();
            let slice_end_ns = shared.slice_start_ns.load(Ordering::Relaxed) + slice_ns;
            if is_contended && position_ns >= slice_end_ns {
                self.hand_over(gpu, shared, remaining_ns < duration_ns);
                continue;
            }
            start_ns.get_or_insert(position_ns);
            let goal_ns = if is_contended { (position_ns + remaining_ns).min(slice_end_ns) } else { position_ns + remaining_ns };
            shared.owner_deadline_ns.store(goal_ns, Ordering::Relaxed);
            let seen = shared.wakeups.load(Ordering::Acquire);
            drop(guard);
            let now = now_ns();
            if goal_ns > now {
                futex_wait_until(&shared.wakeups, seen, goal_ns);
            }
            guard = shared.scheduler.lock(|| ());
            let reached_ns = if now_ns() >= goal_ns { goal_ns } else { now_ns().clamp(position_ns, goal_ns) };
            self.state().gpus[gpu].busy.add(position_ns, reached_ns);
            shared.busy.add(position_ns, reached_ns);
            remaining_ns -= reached_ns - position_ns;
            if shared.owner.load(Ordering::Relaxed) == own_tag {
                shared.cursor_ns.store(reached_ns, Ordering::Relaxed);
                if !is_contended && self.other_runnable(gpu).next().is_some() {
                    // Somebody came: from here on slices count.
                    shared.slice_start_ns.store(reached_ns.max(shared.slice_start_ns.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
            }
            if remaining_ns == 0 || stop.load(Ordering::Acquire) {
                drop(guard);
                return Span { start_ns: start_ns.unwrap_or(position_ns), end_ns: reached_ns, gpu_ns: duration_ns - remaining_ns };
            }
        }
    }

    /// Makes a [`Slot::run_until`] of this process look at its flag.
    pub fn interrupt(&self, gpu: usize) {
        futex_wake_all(&self.device.state.gpus[gpu].wakeups);
    }

    /// Gives the GPU up: this process has no more work for it.
    pub fn set_idle(&self, gpu: usize) {
        let shared = &self.device.state.gpus[gpu];
        let _guard = shared.scheduler.lock(|| ());
        self.state().gpus[gpu].runnable.store(0, Ordering::Relaxed);
        if shared.owner.load(Ordering::Relaxed) == self.owner_tag() {
            self.hand_over(gpu, shared, false);
        }
    }

    fn owner_tag(&self) -> u32 {
        u32::try_from(self.index + 1).unwrap_or(0)
    }

    /// Says that this process has work; an owner without competition must hear of it.
    fn set_runnable(&self, gpu: usize, shared: &Gpu) {
        let before = self.state().gpus[gpu].runnable.swap(1, Ordering::Relaxed);
        if before == 0 && ![0, self.owner_tag()].contains(&shared.owner.load(Ordering::Relaxed)) {
            futex_wake_all(&shared.wakeups);
        }
    }

    /// Makes this process the owner if nobody is, or if the owner is dead or far past its time.
    fn try_acquire(&self, shared: &Gpu, ready_ns: u64) -> bool {
        let owner = shared.owner.load(Ordering::Relaxed);
        let is_overdue = now_ns() > shared.owner_deadline_ns.load(Ordering::Relaxed) + OWNER_GRACE_NS;
        if owner != 0 && !is_overdue {
            return false;
        }
        if is_overdue && owner != 0 {
            // The stopped or dead process is out of the game until it announces itself again.
            let gpu = self.device.state.gpus.iter().position(|gpu| std::ptr::eq(gpu, shared)).unwrap_or(0);
            self.device.state.slots[owner as usize - 1].gpus[gpu].runnable.store(0, Ordering::Relaxed);
        }
        self.assign(shared, self.owner_tag(), ready_ns, false);
        true
    }

    /// Hands the GPU to the next process that has work, or to nobody.
    fn hand_over(&self, gpu: usize, shared: &Gpu, interrupts: bool) {
        match self.other_runnable(gpu).next() {
            Some(next) => self.assign(shared, u32::try_from(next + 1).unwrap_or(0), 0, interrupts),
            None => shared.owner.store(0, Ordering::Relaxed),
        }
        futex_wake_all(&shared.wakeups);
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
        shared.owner_deadline_ns.store(start_ns.max(now_ns()), Ordering::Relaxed);
        shared.owner.store(tag, Ordering::Relaxed);
    }

    /// The other processes with work for a GPU, from the slot after this one around.
    fn other_runnable(&self, gpu: usize) -> impl Iterator<Item = usize> {
        let device: &Device = &self.device;
        let count = device.state.high_water.load(Ordering::Relaxed) as usize;
        let runnable =
            move |slot: &SlotState| slot.pid.load(Ordering::Relaxed) != 0 && slot.gpus[gpu].runnable.load(Ordering::Relaxed) != 0;
        let order = (1..count).map(move |step| (self.index + step) % count);
        order.filter(move |&index| {
            let slot = &device.state.slots[index];
            let alive = || device.descriptor().is_none_or(|fd| locks::is_locked(fd, index));
            runnable(slot) && alive()
        })
    }
}
