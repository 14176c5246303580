//! A GPU with a clock of its own: streams run side by side, each in order; time passes when somebody waits or calls.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

use vgpu_region::uuid::Uuid;

use crate::engine::Handle;
use crate::engine::{Engine, Power, Progress, Waited};

/// What an event between two kernels takes of the GPU's time.
const EVENT: u64 = 2_000;
/// From the return of a call to the GPU's starting on it: a kernel, an event.
const LATENCY: u64 = 2_100;
const EVENT_LATENCY: u64 = 3_000;
/// Between two kernels.
pub const BETWEEN: u64 = 1_550;
/// A moment, and what happens then.
type Later = (u64, Box<dyn Fn()>);

#[derive(Default)]
pub struct Gpu {
    now: Cell<u64>,
    events: RefCell<HashMap<usize, u64>>,
    next: Cell<usize>,
    free_at: RefCell<HashMap<usize, u64>>,
    /// GPU time in which at least one kernel ran.
    busy: RefCell<Vec<(u64, u64)>>,
    /// What a launch costs the host.
    pub host: Cell<u64>,
    pub naps: Cell<u64>,
    /// Calls of the driver that are not the program's.
    pub calls: Cell<u64>,
    /// Kernels fill the GPU: none runs beside another.
    pub exclusive: Cell<bool>,
    all_free_at: Cell<u64>,
    /// So many events can still be made.
    pub scarce: Cell<Option<usize>>,
    /// What its kernels draw beyond what it draws at rest, in watts; it does not tell where that is 0.
    pub draws: Cell<u32>,
    /// Its power limit, in watts.
    pub limit: Cell<u32>,
    /// How busy others make it, in percent.
    pub others: Cell<u32>,
    /// What somebody else does at this moment.
    pub later: RefCell<Option<Later>>,
}

pub fn stream(number: usize) -> Handle {
    (number + 1) as Handle
}

impl Gpu {
    pub fn new() -> Self {
        let gpu = Self::default();
        gpu.now.set(1_000_000_000_000);
        gpu.host.set(2_300);
        gpu.limit.set(700);
        gpu
    }

    pub fn pass(&self, nanos: u64) {
        self.now.set(self.now.get() + nanos);
        if self.later.borrow().as_ref().is_some_and(|(at, _)| *at <= self.now.get())
            && let Some((_, act)) = self.later.take()
        {
            act();
        }
    }

    /// Runs a kernel of so many nanoseconds.
    pub fn launch(&self, stream: Handle, nanos: u64) {
        self.pass(self.host.get());
        let mut free_at = self.free_at.borrow_mut();
        let free = free_at.entry(stream as usize).or_default();
        let before = *free;
        let mut start = (*free + BETWEEN).max(self.now.get() + LATENCY);
        if self.exclusive.get() {
            start = start.max(self.all_free_at.get() + BETWEEN);
        }
        *free = start + nanos;
        self.all_free_at.set(self.all_free_at.get().max(*free));
        // The pause between two kernels is nobody else's: the GPU is busy in it.
        self.busy.borrow_mut().push((if start == before + BETWEEN { before } else { start }, *free));
    }

    /// A copy: it takes its place in the stream, and no compute time.
    pub fn copy(&self, stream: Handle, nanos: u64) {
        self.launch(stream, nanos);
        self.busy.borrow_mut().pop();
    }

    pub fn synchronize(&self, stream: Handle) {
        let free = self.free_at.borrow().get(&(stream as usize)).copied().unwrap_or(0);
        self.now.set(self.now.get().max(free + 3_000));
    }

    /// When the stream runs out of work.
    pub fn free(&self, stream: Handle) -> u64 {
        self.free_at.borrow().get(&(stream as usize)).copied().unwrap_or(0)
    }

    /// When the kernel of this number began.
    pub fn started(&self, number: usize) -> u64 {
        self.busy.borrow()[number].0
    }

    /// Kernels finished between two moments.
    pub fn finished(&self, from: u64, to: u64) -> usize {
        self.busy.borrow().iter().filter(|&&(_, end)| from <= end && end < to).count()
    }

    /// Hash of the times at which all kernels began and ended.
    pub fn fingerprint(&self) -> u64 {
        self.busy
            .borrow()
            .iter()
            .flat_map(|&(start, end)| [start, end])
            .fold(0, |hash: u64, time| (hash ^ time).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29))
    }

    /// GPU time used between two moments.
    pub fn used(&self, from: u64, to: u64) -> u64 {
        self.used_but_for(from, to, 0)
    }

    /// The same, with the pauses between that are shorter than `pause`.
    pub fn used_but_for(&self, from: u64, to: u64, pause: u64) -> u64 {
        let mut busy: Vec<_> =
            self.busy.borrow().iter().map(|&(start, end)| (start.max(from), end.min(to))).filter(|(s, e)| s < e).collect();
        busy.sort_unstable();
        let (mut total, mut reached) = (0, 0);
        for (start, end) in busy {
            let begins = if reached != 0 && start < reached + pause { reached } else { start.max(reached) };
            total += end.saturating_sub(begins);
            reached = reached.max(end);
        }
        total
    }
}

impl Engine for Gpu {
    fn now(&self) -> u64 {
        self.pass(20);
        self.now.get()
    }

    fn sleep(&self, nanos: u64) {
        self.naps.set(self.naps.get() + 1);
        self.pass(nanos + 55_000);
    }

    /// What somebody else does meanwhile is a change of the word, and ends it.
    fn sleep_unless(&self, _word: &AtomicU32, _value: u32, nanos: u64) {
        let change = self.later.borrow().as_ref().map_or(u64::MAX, |(at, _)| at.saturating_sub(self.now.get()));
        self.sleep(nanos.min(change));
    }

    fn wait_for_change(&self, _word: &AtomicU32, _value: u32, nanos: u64) {
        self.sleep(nanos);
    }

    fn wake(&self, _word: &AtomicU32) {}

    fn create(&self) -> Option<Handle> {
        if let Some(left) = self.scarce.get() {
            self.scarce.set(Some(left.checked_sub(1)?));
        }
        self.next.set(self.next.get() + 1);
        Some(self.next.get() as Handle)
    }

    fn record(&self, event: Handle, stream: Handle) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.pass(700);
        let mut free_at = self.free_at.borrow_mut();
        let free = free_at.entry(stream as usize).or_default();
        *free = (*free + EVENT).max(self.now.get() + EVENT_LATENCY);
        self.events.borrow_mut().insert(event as usize, *free);
        true
    }

    fn progress(&self, event: Handle) -> Progress {
        self.calls.set(self.calls.get() + 1);
        self.pass(110);
        match self.events.borrow().get(&(event as usize)) {
            Some(&at) if at <= self.now.get() => Progress::Done,
            Some(_) => Progress::Pending,
            None => Progress::Lost,
        }
    }

    fn between(&self, from: Handle, to: Handle) -> Option<i64> {
        self.calls.set(self.calls.get() + 1);
        self.pass(40);
        let events = self.events.borrow();
        let at = |event: Handle| events.get(&(event as usize)).filter(|&&at| at <= self.now.get()).copied();
        Some(at(to)? as i64 - at(from)? as i64)
    }

    fn reaches(&self, _stream: Handle) -> bool {
        true
    }

    fn is_idle(&self, stream: Handle) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.pass(130);
        self.free_at.borrow().get(&(stream as usize)).is_none_or(|&free| free <= self.now.get())
    }

    fn power(&self, _gpu: Uuid) -> Option<Power> {
        let used = self.used(self.now.get() - 1_000_000_000, self.now.get());
        let limit = self.limit.get() * 1000;
        let drawn = limit / 1000 * 175 + (u64::from(self.draws.get()) * used / 1_000_000) as u32;
        (self.draws.get() != 0).then_some(Power { drawn, limit, usual: limit })
    }

    fn busy(&self, _gpu: Uuid) -> Option<u32> {
        Some((self.used(self.now.get() - 1_000_000_000, self.now.get()) / 10_000_000) as u32 + self.others.get())
    }

    fn waited(&self, _waited: &Waited) {}
}
