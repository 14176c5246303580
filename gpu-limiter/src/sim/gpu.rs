//! A simulated GPU with its own clock. Streams run side by side, each in order. Time passes only in calls.
//!
//! The constants are the simulator's own physics, as measured on real GPUs. They do not follow the limiter's constants.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

use vgpu_region::uuid::Uuid;

use crate::engine::{Engine, EventStatus, Handle, LaunchWait, Power};

/// GPU time of an event between two kernels, in nanoseconds.
const EVENT_NS: u64 = 2_000;
/// Time from the return of a call until the GPU starts on it, for a kernel and for an event, in nanoseconds.
const KERNEL_LATENCY_NS: u64 = 2_100;
const EVENT_LATENCY_NS: u64 = 3_000;
/// Time between two kernels of a stream, in nanoseconds.
pub const BETWEEN_NS: u64 = 1_550;
/// Time that the host needs for a launch, for reading the clock, for a sleep beyond its length, and to return from a wait, in nanoseconds.
const LAUNCH_NS: u64 = 2_300;
const CLOCK_NS: u64 = 20;
const TIMER_SLACK_NS: u64 = 55_000;
const WAIT_RETURN_NS: u64 = 3_000;
/// Time that the host needs to record an event, to query one, to compare two, and to query a stream, in nanoseconds.
const RECORD_NS: u64 = 700;
const EVENT_QUERY_NS: u64 = 110;
const ELAPSED_NS: u64 = 40;
const STREAM_QUERY_NS: u64 = 130;
/// Window over which power and utilization are averaged, in nanoseconds.
const AVERAGE_NS: u64 = 1_000_000_000;
/// Power draw at rest, in thousandths of the limit.
const REST_PER_MILLE: u32 = 175;
/// Host time and an action at that time.
type Scheduled = (u64, Box<dyn Fn()>);

#[derive(Default)]
pub struct Gpu {
    now: Cell<u64>,
    events: RefCell<HashMap<usize, u64>>,
    next_event: Cell<usize>,
    free_at: RefCell<HashMap<usize, u64>>,
    /// Intervals in which a kernel ran.
    busy: RefCell<Vec<(u64, u64)>>,
    /// Time that a launch takes on the host, in nanoseconds.
    pub launch_ns: Cell<u64>,
    /// GPU time of an event between two kernels, in nanoseconds.
    pub event_ns: Cell<u64>,
    /// Time by which a sleep exceeds its length, in nanoseconds.
    pub wake_ns: Cell<u64>,
    /// Number of sleeps.
    pub naps: Cell<u64>,
    /// Number of the limiter's calls of the driver.
    pub calls: Cell<u64>,
    /// Each kernel fills the GPU: no two run concurrently.
    pub is_exclusive: Cell<bool>,
    all_free_at: Cell<u64>,
    /// Number of events that can still be created; `None` is any.
    pub events_left: Cell<Option<usize>>,
    /// Power draw of kernels above that at rest, in watts. With 0 the GPU does not report power.
    pub kernel_watts: Cell<u32>,
    /// Power limit, in watts.
    pub limit_watts: Cell<u32>,
    /// Utilization by other programs, in percent.
    pub others_percent: Cell<u32>,
    /// An action of another process.
    pub scheduled: RefCell<Option<Scheduled>>,
}

pub fn stream(number: usize) -> Handle {
    (number + 1) as Handle
}

impl Gpu {
    pub fn new() -> Self {
        let gpu = Self::default();
        gpu.now.set(1_000_000_000_000);
        gpu.launch_ns.set(LAUNCH_NS);
        gpu.event_ns.set(EVENT_NS);
        gpu.wake_ns.set(TIMER_SLACK_NS);
        gpu.limit_watts.set(700);
        gpu
    }

    /// Lets time pass.
    pub fn pass(&self, duration_ns: u64) {
        self.now.set(self.now.get() + duration_ns);
        if self.scheduled.borrow().as_ref().is_some_and(|(at, _)| *at <= self.now.get())
            && let Some((_, act)) = self.scheduled.take()
        {
            act();
        }
    }

    /// Launches a kernel of this length.
    pub fn launch(&self, stream: Handle, length_ns: u64) {
        self.pass(self.launch_ns.get());
        let mut free_at = self.free_at.borrow_mut();
        let free = free_at.entry(stream as usize).or_default();
        let before = *free;
        let mut start = (*free + BETWEEN_NS).max(self.now.get() + KERNEL_LATENCY_NS);
        if self.is_exclusive.get() {
            start = start.max(self.all_free_at.get() + BETWEEN_NS);
        }
        *free = start + length_ns;
        self.all_free_at.set(self.all_free_at.get().max(*free));
        // The GPU counts as busy in the pause between two kernels: no other program can use it.
        self.busy.borrow_mut().push((if start == before + BETWEEN_NS { before } else { start }, *free));
    }

    /// Launches a copy: it occupies its stream and takes no compute time.
    pub fn copy(&self, stream: Handle, length_ns: u64) {
        self.launch(stream, length_ns);
        self.busy.borrow_mut().pop();
    }

    pub fn synchronize(&self, stream: Handle) {
        self.now.set(self.now.get().max(self.free_at(stream) + WAIT_RETURN_NS));
    }

    /// Returns the time at which the stream runs out of work.
    pub fn free_at(&self, stream: Handle) -> u64 {
        self.free_at.borrow().get(&(stream as usize)).copied().unwrap_or(0)
    }

    /// Returns the start of the kernel with this number.
    pub fn started_at(&self, number: usize) -> u64 {
        self.busy.borrow()[number].0
    }

    /// Returns the number of kernels that ended in an interval.
    pub fn finished(&self, from: u64, to: u64) -> usize {
        self.busy.borrow().iter().filter(|&&(_, end)| from <= end && end < to).count()
    }

    /// Returns the GPU time of kernels in each window of `length` nanoseconds from `from` to `to`. Kernels that run side by side all count.
    pub fn work(&self, from: u64, to: u64, length: u64) -> Vec<f64> {
        let mut windows = vec![0.0; ((to - from) / length) as usize];
        for &(start, end) in self.busy.borrow().iter().filter(|&&(start, end)| end > from && start < to) {
            let (first, last) = (start.max(from) - from, end.min(to) - from);
            for window in first / length..=last / length {
                let part = last.min((window + 1) * length).saturating_sub(first.max(window * length));
                if let Some(sum) = windows.get_mut(window as usize) {
                    *sum += part as f64;
                }
            }
        }
        windows
    }

    /// Returns a hash of the times at which all kernels began and ended.
    pub fn fingerprint(&self) -> u64 {
        self.busy
            .borrow()
            .iter()
            .flat_map(|&(start, end)| [start, end])
            .fold(0, |hash: u64, time| (hash ^ time).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29))
    }

    /// Returns the GPU time used in an interval, in nanoseconds.
    pub fn used(&self, from: u64, to: u64) -> u64 {
        self.used_with_pauses(from, to, 0)
    }

    /// Returns the GPU time used in an interval, with pauses that are shorter than `pause_ns`.
    pub fn used_with_pauses(&self, from: u64, to: u64, pause_ns: u64) -> u64 {
        let mut busy: Vec<_> =
            self.busy.borrow().iter().map(|&(start, end)| (start.max(from), end.min(to))).filter(|(s, e)| s < e).collect();
        busy.sort_unstable();
        let (mut total_ns, mut reached) = (0, 0);
        for (start, end) in busy {
            let begins = if reached != 0 && start < reached + pause_ns { reached } else { start.max(reached) };
            total_ns += end.saturating_sub(begins);
            reached = reached.max(end);
        }
        total_ns
    }
}

impl Engine for Gpu {
    fn now(&self) -> u64 {
        self.pass(CLOCK_NS);
        self.now.get()
    }

    fn sleep(&self, duration_ns: u64) {
        self.naps.set(self.naps.get() + 1);
        self.pass(duration_ns + self.wake_ns.get());
    }

    /// A scheduled action changes the word, and ends the sleep.
    fn sleep_while(&self, _word: &AtomicU32, _value: u32, duration_ns: u64) {
        let change_ns = self.scheduled.borrow().as_ref().map_or(u64::MAX, |(at, _)| at.saturating_sub(self.now.get()));
        self.sleep(duration_ns.min(change_ns));
    }

    fn wait_for_change(&self, _word: &AtomicU32, _value: u32, timeout_ns: u64) {
        self.sleep(timeout_ns);
    }

    fn wake(&self, _word: &AtomicU32) {}

    fn create_event(&self) -> Option<Handle> {
        if let Some(left) = self.events_left.get() {
            self.events_left.set(Some(left.checked_sub(1)?));
        }
        self.next_event.set(self.next_event.get() + 1);
        Some(self.next_event.get() as Handle)
    }

    fn record_event(&self, event: Handle, stream: Handle) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.pass(RECORD_NS);
        let mut free_at = self.free_at.borrow_mut();
        let free = free_at.entry(stream as usize).or_default();
        *free = (*free + self.event_ns.get()).max(self.now.get() + EVENT_LATENCY_NS);
        self.events.borrow_mut().insert(event as usize, *free);
        true
    }

    fn event_status(&self, event: Handle) -> EventStatus {
        self.calls.set(self.calls.get() + 1);
        self.pass(EVENT_QUERY_NS);
        match self.events.borrow().get(&(event as usize)) {
            Some(&at) if at <= self.now.get() => EventStatus::Done,
            Some(_) => EventStatus::Pending,
            None => EventStatus::Lost,
        }
    }

    fn elapsed_ns(&self, from: Handle, to: Handle) -> Option<i64> {
        self.calls.set(self.calls.get() + 1);
        self.pass(ELAPSED_NS);
        let events = self.events.borrow();
        let at = |event: Handle| events.get(&(event as usize)).filter(|&&at| at <= self.now.get()).copied();
        Some(at(to)? as i64 - at(from)? as i64)
    }

    fn can_record_in(&self, _stream: Handle) -> bool {
        true
    }

    fn is_idle(&self, stream: Handle) -> bool {
        self.calls.set(self.calls.get() + 1);
        self.pass(STREAM_QUERY_NS);
        self.free_at.borrow().get(&(stream as usize)).is_none_or(|&free| free <= self.now.get())
    }

    fn power(&self, _gpu: Uuid) -> Option<Power> {
        let used_ns = self.used(self.now.get() - AVERAGE_NS, self.now.get());
        let limit_mw = self.limit_watts.get() * 1000;
        let drawn_mw = limit_mw / 1000 * REST_PER_MILLE + (u64::from(self.kernel_watts.get()) * used_ns / 1_000_000) as u32;
        (self.kernel_watts.get() != 0).then_some(Power { drawn_mw, limit_mw, default_limit_mw: limit_mw })
    }

    fn busy_percent(&self, _gpu: Uuid) -> Option<u32> {
        Some((self.used(self.now.get() - AVERAGE_NS, self.now.get()) / (AVERAGE_NS / 100)) as u32 + self.others_percent.get())
    }

    fn on_wait(&self, _wait: &LaunchWait) {}
}
