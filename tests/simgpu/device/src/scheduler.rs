//! Whose turn it is on a GPU.
//!
//! Time is given out analytically: an operation starts when it is ready and the GPU's cursor allows, and ends after its duration, whatever
//! the host's timers do; who waits for it then sleeps until that instant. Late wake-ups therefore do not add up. Only one process has the
//! GPU at a time. It keeps it while it has work, for a slice at most while others have work too.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::layout::{Gpu, SlotState};
use crate::{Device, Slot, locks};

/// How long past its time an owner may be before the others take the GPU from it (it may be stopped; the GPU would go on).
const GRACE_NS: u64 = 10_000_000;

/// The clock of all simulated GPUs: CLOCK_MONOTONIC in ns.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a timespec that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until `word` is no longer `seen`, somebody rings it, or the clock says `until`.
fn wait(word: &AtomicU32, seen: u32, until: u64) {
    let time = libc::timespec { tv_sec: (until / 1_000_000_000) as i64, tv_nsec: (until % 1_000_000_000) as i64 };
    let operation = libc::FUTEX_WAIT_BITSET;
    // SAFETY: the futex word and the time live through the call; an absolute time goes with the BITSET form.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, &raw const time, std::ptr::null::<u32>(), u32::MAX);
    }
}

fn ring(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    // SAFETY: wakes waiters on a word in the shared mapping.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// When an operation ran, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub began: u64,
    /// When it ended or was left.
    pub ended: u64,
    /// How long it had the GPU.
    pub used: u64,
}

impl Slot {
    /// Runs an operation of `duration` ns that was ready at `ready` on a GPU and returns when it ended (by the clock also for the
    /// caller: it sleeps until then). The process keeps its turn; call [`Slot::rest`] when there is nothing more to do.
    pub fn run(&self, gpu: usize, ready: u64, duration: u64) -> (u64, u64) {
        let span = self.run_until(gpu, ready, duration, &AtomicBool::new(false));
        (span.began, span.ended)
    }

    /// The same, but ends early when `stop` is set and [`Slot::nudge`] is called.
    pub fn run_until(&self, gpu: usize, ready: u64, duration: u64, stop: &AtomicBool) -> Span {
        let shared = &self.device.state.gpus[gpu];
        let me = self.number();
        let slice = self.device.config().slice_ns;
        let mut remaining = duration;
        let mut began = None;
        let mut guard = shared.turn.lock(|| ());
        self.announce(gpu, shared);
        loop {
            if shared.owner.load(Ordering::Relaxed) != me && !self.take_turn(shared, ready) {
                // Who was late on a busy machine may have been taken for stopped: it is back in the game.
                self.announce(gpu, shared);
                let seen = shared.bell.load(Ordering::Acquire);
                let until = shared.owner_until.load(Ordering::Relaxed).max(now_ns()) + GRACE_NS;
                drop(guard);
                wait(&shared.bell, seen, until);
                guard = shared.turn.lock(|| ());
                continue;
            }
            let position = shared.cursor.load(Ordering::Relaxed).max(ready);
            let contended = self.others(gpu).next().is_some();
            let slice_end = shared.turn_began.load(Ordering::Relaxed) + slice;
            if contended && position >= slice_end {
                self.pass_on(gpu, shared, remaining < duration);
                continue;
            }
            began.get_or_insert(position);
            let goal = if contended { (position + remaining).min(slice_end) } else { position + remaining };
            shared.owner_until.store(goal, Ordering::Relaxed);
            let seen = shared.bell.load(Ordering::Acquire);
            drop(guard);
            let now = now_ns();
            if goal > now {
                wait(&shared.bell, seen, goal);
            }
            guard = shared.turn.lock(|| ());
            let reached = if now_ns() >= goal { goal } else { now_ns().clamp(position, goal) };
            self.state().gpus[gpu].busy.add(position, reached);
            shared.busy.add(position, reached);
            remaining -= reached - position;
            if shared.owner.load(Ordering::Relaxed) == me {
                shared.cursor.store(reached, Ordering::Relaxed);
                if !contended && self.others(gpu).next().is_some() {
                    // Somebody came: from here on slices count.
                    shared.turn_began.store(reached.max(shared.turn_began.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
            }
            if remaining == 0 || stop.load(Ordering::Acquire) {
                drop(guard);
                return Span { began: began.unwrap_or(position), ended: reached, used: duration - remaining };
            }
        }
    }

    /// Makes a [`Slot::run_until`] of this process look at its flag.
    pub fn nudge(&self, gpu: usize) {
        ring(&self.device.state.gpus[gpu].bell);
    }

    /// Gives the GPU up: this process has no more work for it.
    pub fn rest(&self, gpu: usize) {
        let shared = &self.device.state.gpus[gpu];
        let _guard = shared.turn.lock(|| ());
        self.state().gpus[gpu].runnable.store(0, Ordering::Relaxed);
        if shared.owner.load(Ordering::Relaxed) == self.number() {
            self.pass_on(gpu, shared, false);
        }
    }

    fn number(&self) -> u32 {
        u32::try_from(self.index + 1).unwrap_or(0)
    }

    /// Says that this process has work; an owner without competition must hear of it.
    fn announce(&self, gpu: usize, shared: &Gpu) {
        let before = self.state().gpus[gpu].runnable.swap(1, Ordering::Relaxed);
        if before == 0 && ![0, self.number()].contains(&shared.owner.load(Ordering::Relaxed)) {
            ring(&shared.bell);
        }
    }

    /// Makes this process the owner if nobody is, or if the owner is dead or far past its time.
    fn take_turn(&self, shared: &Gpu, ready: u64) -> bool {
        let owner = shared.owner.load(Ordering::Relaxed);
        let overdue = now_ns() > shared.owner_until.load(Ordering::Relaxed) + GRACE_NS;
        if owner != 0 && !overdue {
            return false;
        }
        if overdue && owner != 0 {
            // The stopped or dead process is out of the game until it announces itself again.
            let gpu = self.device.state.gpus.iter().position(|gpu| std::ptr::eq(gpu, shared)).unwrap_or(0);
            self.device.state.slots[owner as usize - 1].gpus[gpu].runnable.store(0, Ordering::Relaxed);
        }
        self.give(shared, self.number(), ready, false);
        true
    }

    /// Hands the GPU to the next process that has work, or to nobody.
    fn pass_on(&self, gpu: usize, shared: &Gpu, interrupts: bool) {
        match self.others(gpu).next() {
            Some(next) => self.give(shared, u32::try_from(next + 1).unwrap_or(0), 0, interrupts),
            None => shared.owner.store(0, Ordering::Relaxed),
        }
        ring(&shared.bell);
    }

    fn give(&self, shared: &Gpu, number: u32, ready: u64, interrupts: bool) {
        let last = shared.last_owner.swap(number, Ordering::Relaxed);
        let config = self.device.config();
        let loss = match last {
            _ if interrupts => config.switch_ns + config.preempt_ns,
            0 => 0,
            last if last == number => 0,
            _ => config.switch_ns,
        };
        let began = shared.cursor.load(Ordering::Relaxed).max(ready) + loss;
        shared.cursor.store(began, Ordering::Relaxed);
        shared.turn_began.store(began, Ordering::Relaxed);
        shared.owner_until.store(began.max(now_ns()), Ordering::Relaxed);
        shared.owner.store(number, Ordering::Relaxed);
    }

    /// The other processes with work for a GPU, from the slot after this one around.
    fn others(&self, gpu: usize) -> impl Iterator<Item = usize> {
        let device: &Device = &self.device;
        let count = device.state.high_water.load(Ordering::Relaxed) as usize;
        let runnable =
            move |slot: &SlotState| slot.pid.load(Ordering::Relaxed) != 0 && slot.gpus[gpu].runnable.load(Ordering::Relaxed) != 0;
        let order = (1..count).map(move |step| (self.index + step) % count);
        order.filter(move |&index| {
            let slot = &device.state.slots[index];
            let alive = || device.descriptor().is_none_or(|fd| locks::is_taken(fd, index));
            runnable(slot) && alive()
        })
    }
}
