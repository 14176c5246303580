//! When the process's channels were off, or the process was frozen, and where that lies on the GPU's clock.
//!
//! The GPU does none of the process's work meanwhile, although events before and after it measure that time, too. The times are known by the
//! host's clock, and batches by the GPU's: `ClockOffset` bounds the distance between the two by when ends of batches were seen.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Number of times that are remembered. With turns of a tenth of a second, those of the last half minute.
const CAPACITY: usize = 256;
/// Largest difference between the rates of the two clocks, as a divisor (100 µs in a second; NTP corrects by less than 500).
const DRIFT_DIVISOR: u64 = 10_000;

/// One time, in nanoseconds of the host's clock.
#[derive(Debug)]
struct OffTime {
    from: AtomicU64,
    /// End; `u64::MAX` while it lasts.
    until: AtomicU64,
    /// Sum of all times before it.
    before_ns: AtomicU64,
}

/// The times at which the process's channels were off, or it was frozen. One thread adds to them. All zero is none.
#[derive(Debug)]
pub struct OffTimes {
    times: [OffTime; CAPACITY],
    count: AtomicU64,
}

impl Default for OffTimes {
    fn default() -> Self {
        let none = || OffTime { from: AtomicU64::new(0), until: AtomicU64::new(0), before_ns: AtomicU64::new(0) };
        Self { times: core::array::from_fn(|_| none()), count: AtomicU64::new(0) }
    }
}

impl OffTimes {
    fn at(&self, number: u64) -> Option<&OffTime> {
        self.times.get((number % CAPACITY as u64) as usize)
    }

    /// Begins a time at `now`.
    pub fn begin(&self, now: u64) {
        let count = self.count.load(Relaxed);
        let before_ns = count.checked_sub(1).and_then(|last| self.at(last)).map_or(0, |last| last.sum_until(u64::MAX));
        if let Some(time) = self.at(count) {
            time.from.store(now, Relaxed);
            time.until.store(u64::MAX, Relaxed);
            time.before_ns.store(before_ns, Relaxed);
        }
        self.count.store(count + 1, Release);
    }

    /// Ends the time that was begun last.
    pub fn end(&self, now: u64) {
        if let Some(last) = self.count.load(Relaxed).checked_sub(1).and_then(|last| self.at(last)) {
            last.until.store(now, Release);
        }
    }

    /// Adds a time that is over, without what of it was added before.
    pub fn add(&self, from: u64, until: u64) {
        let last_end = self.count.load(Relaxed).checked_sub(1).and_then(|last| self.at(last)).map_or(0, |last| last.until.load(Relaxed));
        if last_end < until {
            self.begin(from.max(last_end));
            self.end(until);
        }
    }

    /// Returns for how long the channels were off between two times of the host's clock, as far as it is remembered. In nanoseconds.
    pub fn between(&self, from: u64, until: u64) -> u64 {
        self.sum_until(until).saturating_sub(self.sum_until(from))
    }

    /// Returns the sum of the times before `at`. For one that is forgotten: the sum before the oldest that is remembered.
    fn sum_until(&self, at: u64) -> u64 {
        let count = self.count.load(Acquire);
        let oldest = count.saturating_sub(CAPACITY as u64 - 1);
        let mut sum_ns = 0;
        for time in (oldest..count).rev().filter_map(|number| self.at(number)) {
            sum_ns = time.before_ns.load(Relaxed);
            if time.from.load(Relaxed) <= at {
                return time.sum_until(at);
            }
        }
        sum_ns
    }
}

impl OffTime {
    fn sum_until(&self, at: u64) -> u64 {
        let (from, until) = (self.from.load(Relaxed), self.until.load(Acquire));
        // A time that lasts has not ended before `at`; `u64::MAX` asks for all of one that has.
        let end = if until == u64::MAX && at == u64::MAX { from } else { until.min(at) };
        self.before_ns.load(Relaxed) + end.saturating_sub(from)
    }
}

/// Distance from a GPU's timeline to the host's clock, in nanoseconds. An event is seen after it was reached, and often soon after: the smallest
/// distance seen is about the true one.
#[derive(Debug, Default)]
pub(crate) struct ClockOffset {
    pub least: Option<i64>,
    /// Host time of the last observation.
    pub seen_at: u64,
}

impl ClockOffset {
    /// Observes that the event at `position` had been reached at `now`. The clocks may have drifted since the last observation.
    pub fn observe(&mut self, now: u64, position: u64) {
        let (offset, drift_ns) = (now.wrapping_sub(position) as i64, (now.saturating_sub(self.seen_at) / DRIFT_DIVISOR) as i64);
        self.least = Some(self.least.map_or(offset, |least| least.saturating_add(drift_ns).min(offset)));
        self.seen_at = now;
    }

    /// Returns the host time of a position; `None` before the first observation.
    pub fn host_time(&self, position: u64) -> Option<u64> {
        Some(position.wrapping_add(self.least? as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_off_between_two_times_is_summed() {
        let times = OffTimes::default();
        assert_eq!(times.between(0, 100), 0);
        times.begin(10);
        assert_eq!((times.between(0, 15), times.between(12, 15), times.between(0, 5)), (5, 3, 0));
        times.end(20);
        times.begin(50);
        times.end(60);
        assert_eq!((times.between(0, 100), times.between(15, 55), times.between(20, 50), times.between(55, 58)), (20, 10, 0, 3));
        times.begin(90);
        assert_eq!(times.between(0, 100), 30, "it lasts");
    }

    #[test]
    fn no_time_counts_twice() {
        let times = OffTimes::default();
        times.add(10, 20);
        times.begin(30);
        times.add(25, 40);
        assert_eq!(times.between(0, 50), 10 + 20, "the last time includes it");
        times.end(50);
        times.add(40, 70);
        assert_eq!(times.between(0, 100), 10 + 40);
    }

    #[test]
    fn old_times_are_forgotten() {
        let times = OffTimes::default();
        for number in 0..1_000 {
            times.begin(number * 100);
            times.end(number * 100 + 30);
        }
        assert_eq!((times.between(90_000, 100_000), times.between(99_000, 99_930)), (3_000, 300));
        assert!(times.between(0, 100_000) < 300 * 30);
    }

    #[test]
    fn the_offset_is_that_of_the_event_seen_soonest() {
        let mut offset = ClockOffset::default();
        assert_eq!(offset.host_time(5), None);
        // The true offset is 1,000.
        offset.observe(7_000, 2_000);
        offset.observe(4_010, 3_000);
        offset.observe(9_000, 4_000);
        assert_eq!(offset.host_time(4_000), Some(5_010), "the second bounds it best");
        // The GPU's clock is slow: the bound follows it.
        for second in 1..100_u64 {
            let host = second * 1_000_000_000;
            offset.observe(host, host - 1_000 - second * 10_000);
        }
        let host = 99_000_000_000;
        assert!(offset.host_time(host - 1_000 - 990_000).unwrap().abs_diff(host) < 200_000);
    }
}
