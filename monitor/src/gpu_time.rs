//! GPU time of processes according to NVML: seen from outside, whatever the processes claim.
//!
//! NVML samples which process has a kernel on the GPU, a few times a second, and returns each process's mean since a given time stamp.
//! Nothing is returned for a process without a kernel in that time, nor while there is no new sample. With MIG it is not supported.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use tracing::warn;

use crate::nvml;

/// Time without samples after which the GPU counts as idle. NVML samples at least once a second.
const IDLE_AFTER: Duration = Duration::from_millis(1200);
/// Longest time that one reading stands for.
const MAX_INTERVAL: Duration = Duration::from_secs(2);

/// GPU time of processes in the time since the last reading that had any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time that the percentages are of. Zero if NVML has not sampled since the last reading: they are that reading's.
    pub length: Duration,
    /// Percent of the GPU's time by PID.
    pub percent: HashMap<u32, u32>,
}

/// Place in NVML's samples of one GPU.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// Newest time stamp seen, in microseconds of NVML's clock. 0 before the first one.
    last_stamp: u64,
    /// Time of the last reading with samples, or since which the GPU is idle.
    read: Instant,
    percent: HashMap<u32, u32>,
    /// Whether NVML could not tell before.
    has_failed: bool,
}

impl Cursor {
    /// Returns a cursor before all samples.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { last_stamp: 0, read: now, percent: HashMap::new(), has_failed: false }
    }

    /// Reads NVML's samples since the last call. `None` if NVML cannot tell.
    pub fn read(&mut self, device: &Device<'_>) -> Option<Usage> {
        self.read_from(|since| device.process_utilization_stats(since))
    }

    /// Reads samples, for which `ask` asks NVML from a time stamp on.
    fn read_from(&mut self, ask: impl Fn(u64) -> Result<Vec<ProcessUtilizationSample>, NvmlError>) -> Option<Usage> {
        let samples = match nvml::list(|| ask(self.last_stamp)) {
            Ok(samples) => samples,
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    warn!(%error, "NVML does not report the GPU time of processes: limits on it cannot be checked from outside");
                }
                return None;
            }
        };
        Some(self.advance(&samples, Instant::now()))
    }

    fn advance(&mut self, samples: &[ProcessUtilizationSample], now: Instant) -> Usage {
        // Some drivers return garbage for processes that have exited.
        let is_new = |sample: &&ProcessUtilizationSample| sample.timestamp > self.last_stamp && sample.sm_util <= 100;
        let samples: Vec<&ProcessUtilizationSample> = samples.iter().filter(is_new).collect();
        let Some(newest) = samples.iter().map(|sample| sample.timestamp).max() else { return self.advance_without(now) };
        // The first reading is a mean over all that NVML remembers.
        let length = if self.last_stamp == 0 { Duration::ZERO } else { Duration::from_micros(newest - self.last_stamp).min(MAX_INTERVAL) };
        (self.last_stamp, self.read) = (newest, now);
        self.percent.clear();
        for sample in samples {
            let percent = self.percent.entry(sample.pid).or_default();
            *percent = (*percent).max(sample.sm_util);
        }
        Usage { length, percent: self.percent.clone() }
    }

    /// A reading without samples: the GPU is idle if this lasts.
    fn advance_without(&mut self, now: Instant) -> Usage {
        let idle = now.saturating_duration_since(self.read);
        if idle < IDLE_AFTER {
            return Usage { length: Duration::ZERO, percent: self.percent.clone() };
        }
        // The next samples are of a time after this one.
        if self.last_stamp != 0 {
            self.last_stamp += idle.as_micros() as u64;
        }
        self.read = now;
        self.percent.clear();
        Usage { length: idle, percent: HashMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sample(pid: u32, timestamp: u64, sm_util: u32) -> ProcessUtilizationSample {
        ProcessUtilizationSample { pid, timestamp, sm_util, mem_util: 0, enc_util: 0, dec_util: 0 }
    }

    #[test]
    fn a_list_that_grew_meanwhile_is_read_again() {
        let (mut cursor, asked) = (Cursor::new(Instant::now()), Cell::new(0));
        let usage = cursor.read_from(|_| {
            asked.set(asked.get() + 1);
            if asked.get() == 1 { Err(NvmlError::InsufficientSize(None)) } else { Ok(vec![sample(7, 1_000_000, 40)]) }
        });
        assert_eq!(usage.map(|usage| usage.percent), Some(HashMap::from([(7, 40)])));
        let endless = cursor.read_from(|_| Err(NvmlError::InsufficientSize(None)));
        assert_eq!(endless, None, "nobody waits for a list that keeps growing");
    }

    #[test]
    fn readings_cover_the_time_between_time_stamps() {
        let start = Instant::now();
        let mut cursor = Cursor::new(start);
        let mut read = |samples: &[ProcessUtilizationSample], at_ms: u64| {
            let usage = cursor.advance(samples, start + Duration::from_millis(at_ms));
            let mut percent: Vec<_> = usage.percent.into_iter().collect();
            percent.sort_unstable();
            (usage.length.as_millis(), percent)
        };
        assert_eq!(read(&[sample(7, 1_000_000, 40)], 100), (0, vec![(7, 40)]), "a mean over an unknown time");
        assert_eq!(read(&[sample(7, 1_400_000, 50), sample(8, 1_300_000, 20)], 500), (400, vec![(7, 50), (8, 20)]));
        assert_eq!(read(&[], 900), (0, vec![(7, 50), (8, 20)]), "no new samples");
        assert_eq!(read(&[sample(7, 1_400_000, 50), sample(9, 1_500_000, 4_000_000)], 1000), (0, vec![(7, 50), (8, 20)]), "old or garbage");
        assert_eq!(read(&[], 1700), (1200, vec![]), "idle");
        assert_eq!(read(&[], 1800), (0, vec![]));
        assert_eq!(read(&[sample(7, 2_900_000, 100)], 2000), (300, vec![(7, 100)]), "idle time does not count as used");
        assert_eq!(read(&[sample(7, 9_900_000, 100)], 9000), (2000, vec![(7, 100)]), "one reading stands for two seconds at most");
    }
}
