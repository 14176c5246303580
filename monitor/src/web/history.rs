//! Memory and GPU time of the last hour, in slots of ten seconds.

use std::collections::VecDeque;
use std::time::Duration;

/// Length of a slot.
pub const SLOT: Duration = Duration::from_secs(10);
/// Slots that are kept: one hour.
pub const SLOTS: usize = 360;

/// Counters at one moment. They only grow while their subject exists.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// GPU time in nanoseconds.
    pub used_ns: u64,
    /// Time that `used_ns` is of, in nanoseconds.
    pub over_ns: u64,
    /// Whether `used_ns` is what was charged, and not what NVML saw.
    pub is_charged: bool,
    /// Time for which launches were held back, in nanoseconds.
    pub waited_ns: u64,
}

/// Figures of one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Memory in bytes.
    pub memory: u64,
    /// Percent of the GPU's time. `None` if unknown.
    pub time: Option<f32>,
    /// Percent of the time for which launches were held back, summed over threads.
    pub waits: f32,
}

/// History of one share or GPU.
#[derive(Debug)]
pub struct Series {
    /// Points, the newest last. `None` for slots without a sample.
    points: VecDeque<Option<Point>>,
    /// Slot of the newest point.
    newest: u64,
    /// Counters at the last point, and the time of it.
    counted: (Duration, Counters),
}

impl Series {
    /// Begins a history at a time.
    pub fn new(at: Duration, counters: Counters) -> Self {
        Self { points: VecDeque::new(), newest: slot(at), counted: (at, counters) }
    }

    /// Adds a point if a slot has passed since the last one.
    pub fn record(&mut self, at: Duration, memory: u64, counters: Counters) {
        let passed = slot(at).saturating_sub(self.newest);
        if passed == 0 {
            return;
        }
        let (last, before) = self.counted;
        let over_ns = counters.over_ns.saturating_sub(before.over_ns);
        let percent = |part_ns: u64, of_ns: u64| (part_ns as f64 * 100.0 / of_ns.max(1) as f64) as f32;
        let is_comparable = over_ns > 0 && counters.is_charged == before.is_charged;
        let time = is_comparable.then(|| percent(counters.used_ns.saturating_sub(before.used_ns), over_ns).min(100.0));
        let waits = percent(counters.waited_ns.saturating_sub(before.waited_ns), at.saturating_sub(last).as_nanos() as u64);
        let missed = usize::try_from(passed - 1).unwrap_or(SLOTS).min(SLOTS);
        self.points.extend(std::iter::repeat_n(None, missed));
        self.points.push_back(Some(Point { memory, time, waits }));
        self.points.drain(..self.points.len().saturating_sub(SLOTS));
        (self.newest, self.counted) = (slot(at), (at, counters));
    }

    /// Returns `count` points of the last `slots` slots before a time, the newest last. Each is the mean of those that it stands for.
    pub fn last(&self, at: Duration, slots: usize, count: usize) -> Vec<Option<Point>> {
        let (slots, end) = (slots.clamp(1, SLOTS), slot(at));
        let point = |slot: u64| {
            let back = usize::try_from(self.newest.checked_sub(slot)?).ok()?;
            self.points.get(self.points.len().checked_sub(back + 1)?).copied().flatten()
        };
        let mean_of = |number: usize| {
            let [from, to] = [number, number + 1].map(|edge| edge * slots / count.clamp(1, slots));
            mean((from..to).filter_map(|nth| point((end + 1 + nth as u64).checked_sub(slots as u64)?)))
        };
        (0..count.clamp(1, slots)).map(mean_of).collect()
    }

    /// Returns the number of slots from the oldest point to the newest one.
    pub fn span(&self) -> usize {
        self.points.len()
    }
}

/// Returns the mean of points. `None` if there are none.
fn mean(points: impl Iterator<Item = Point>) -> Option<Point> {
    let points: Vec<Point> = points.collect();
    let average = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    Some(Point {
        memory: average(points.iter().map(|point| point.memory as f64).collect())? as u64,
        time: average(points.iter().filter_map(|point| point.time).map(f64::from).collect()).map(|percent| percent as f32),
        waits: average(points.iter().map(|point| f64::from(point.waits)).collect())? as f32,
    })
}

/// Returns the number of the slot at a time.
pub fn slot(at: Duration) -> u64 {
    at.as_secs() / SLOT.as_secs()
}
