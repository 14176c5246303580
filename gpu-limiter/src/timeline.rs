//! The GPU's timeline of one context: positions of events and batches, and what was charged already.
//!
//! Positions are nanoseconds from an arbitrary origin.

use core::sync::atomic::Ordering::Relaxed;

use crate::batch::{Batch, BatchEnd, BatchStart};
use crate::engine::{Engine, EventStatus, Handle};
use crate::idle_gaps::IdleGaps;
use crate::off_times::ClockOffset;
use crate::stream::Stream;
use crate::tuning::PERIOD_NS;

/// Position of the first event, so that earlier ones have a position too.
const ORIGIN: u64 = 1 << 60;

/// Most time that the arbiter adds to its counter of lost time at once, in nanoseconds.
const LATE_LOSS_NS: u64 = 2 * PERIOD_NS;

/// Progress of a closed batch.
#[derive(Clone, Copy)]
pub enum BatchProgress {
    /// It lay in its stream from `start` to `end`.
    Finished { start: u64, end: u64 },
    /// It has not finished. `since` is where it began, `None` if it has not begun or may be waiting for other GPUs.
    Running { since: Option<u64> },
}

/// The timeline. Used by the harvester only.
#[derive(Debug)]
pub struct Timeline {
    /// A finished event of known position. Other events are placed by their distance from it. Null before the first one.
    pub anchor: Handle,
    /// Position of the anchor.
    pub anchor_at: u64,
    /// Position up to which everything is charged.
    pub charged_until: u64,
    /// Uncharged gaps before that.
    pub gaps: IdleGaps,
    /// Number of this harvest, from 1.
    pub harvest: u64,
    /// GPU time charged for running work and not yet settled by measured time, in nanoseconds.
    pub charged_early_ns: u64,
    /// Distance to the host's clock.
    pub offset: ClockOffset,
    /// The arbiter's counter of time lost to other containers' slices when it was last read, in microseconds, and what of it no batch was
    /// refunded yet, in nanoseconds; `None` before the first batch.
    pub lost: Option<(u32, u64)>,
    /// Stream of the last batch.
    pub last_stream: *const Stream,
    /// Number of batches in a row from that stream.
    pub batches_in_row: u32,
}

impl Timeline {
    /// Returns an empty timeline.
    pub const fn new() -> Self {
        Self {
            anchor: core::ptr::null_mut(),
            anchor_at: 0,
            charged_until: 0,
            gaps: IdleGaps::new(),
            harvest: 0,
            charged_early_ns: 0,
            offset: ClockOffset { least: None, seen_at: 0 },
            lost: None,
            last_stream: core::ptr::null(),
            batches_in_row: 0,
        }
    }

    /// Returns what to refund of a batch that took `length_ns` nanoseconds instead of `expected_ns`, as other containers had the GPU meanwhile:
    /// `lost_us` is the arbiter's counter. The batch ended `since_end_ns` ago.
    pub fn refund_ns(&mut self, lost_us: u32, length_ns: u64, expected_ns: u64, since_end_ns: u64) -> u64 {
        let (seen_us, left_ns) = self.lost.unwrap_or((lost_us, 0));
        let lost_ns = left_ns + u64::from(lost_us.wrapping_sub(seen_us)) * 1_000;
        // Up to half as much again is what a batch may take by itself.
        let excess_ns = if length_ns > expected_ns + expected_ns / 2 { length_ns - expected_ns } else { 0 };
        let refund_ns = lost_ns.min(excess_ns);
        // Later batches lie after this one, so they lost no more than the time since then, and what was not counted yet at this one's end.
        self.lost = Some((lost_us, (lost_ns - refund_ns).min(since_end_ns + LATE_LOSS_NS)));
        refund_ns
    }

    /// Returns the progress of the stream's oldest closed batch, or `None` if there is none. Asks the driver at most once in a harvest.
    pub fn oldest_batch(&self, engine: &impl Engine, stream: &Stream) -> Option<BatchProgress> {
        // SAFETY: only the harvester has the timeline.
        let batch = unsafe { stream.oldest() }?;
        let last = &batch.last_query;
        if last.end != 0 {
            return Some(BatchProgress::Finished { start: last.start, end: last.end });
        }
        if last.running_in == self.harvest {
            return Some(BatchProgress::Running { since: (last.running_since != 0).then_some(last.running_since) });
        }
        let progress = self.query(engine, batch, stream.last_end.load(Relaxed));
        let last = &mut batch.last_query;
        match progress {
            // Positions have no meaning before the timeline has an anchor.
            BatchProgress::Finished { start, end } if !self.anchor.is_null() => (last.start, last.end) = (start, end),
            BatchProgress::Finished { .. } => {}
            BatchProgress::Running { since } => {
                let known = if self.anchor.is_null() { None } else { since };
                (last.running_in, last.running_since) = (self.harvest, known.unwrap_or(0));
            }
        }
        Some(progress)
    }

    /// Queries the driver for a batch's progress. `previous_end` is the end of the stream's previous batch.
    fn query(&self, engine: &impl Engine, batch: &Batch, previous_end: u64) -> BatchProgress {
        let has_start_event = batch.start == BatchStart::Event;
        if batch.end == BatchEnd::Guessed {
            let start = if has_start_event { self.position(engine, batch.start_event) } else { None }.unwrap_or(previous_end);
            return BatchProgress::Finished { start, end: start };
        }
        match engine.event_status(batch.end_event) {
            EventStatus::Done => {
                let end = self.position(engine, batch.end_event).unwrap_or(self.charged_until + batch.expected_ns);
                let start = if has_start_event {
                    let length_ns = engine.elapsed_ns(batch.start_event, batch.end_event);
                    length_ns.map_or(previous_end, |length_ns| end.saturating_sub_signed(length_ns) + batch.loading_ns)
                } else {
                    previous_end
                };
                BatchProgress::Finished { start: start.min(end), end }
            }
            // It may be waiting for other GPUs.
            EventStatus::Pending if batch.is_collective => BatchProgress::Running { since: None },
            EventStatus::Pending if !has_start_event => BatchProgress::Running { since: Some(previous_end) },
            EventStatus::Pending if batch.last_query.running_since != 0 => {
                BatchProgress::Running { since: Some(batch.last_query.running_since) }
            }
            EventStatus::Pending if engine.event_status(batch.start_event) == EventStatus::Done => {
                BatchProgress::Running { since: self.position(engine, batch.start_event).map(|start| start + batch.loading_ns) }
            }
            EventStatus::Pending => BatchProgress::Running { since: None },
            // A batch that can no longer be queried counts as expected.
            EventStatus::Lost => BatchProgress::Finished { start: previous_end, end: previous_end + batch.expected_ns },
        }
    }

    /// Returns the position of a finished event.
    fn position(&self, engine: &impl Engine, event: Handle) -> Option<u64> {
        if self.anchor.is_null() {
            return Some(ORIGIN);
        }
        engine.elapsed_ns(self.anchor, event).map(|distance_ns| self.anchor_at.saturating_add_signed(distance_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_was_lost_to_others_is_refunded_once() {
        let mut timeline = Timeline::new();
        assert_eq!(timeline.refund_ns(7_000, 30 * MS, MS, 0), 0, "it was lost before the process began");
        assert_eq!(timeline.refund_ns(7_000, 30 * MS, MS, 0), 0, "nothing was lost");
        assert_eq!(timeline.refund_ns(27_000, MS, MS, 0), 0, "it took no longer than expected");
        assert_eq!(timeline.refund_ns(27_000, 16 * MS, MS, 0), 15 * MS);
        assert_eq!(timeline.refund_ns(27_000, 16 * MS, MS, 0), 5 * MS, "what was left");
        assert_eq!(timeline.refund_ns(u32::MAX, MS, MS, 0), 0);
        assert_eq!(timeline.refund_ns(9_999, 900 * MS, MS, 0), 20 * MS + 10 * MS, "the counter wraps around, and old losses are cut");
    }

    /// 64 tenants that begin together: the second of two batches, read at once, ran for 360 ms.
    #[test]
    fn what_a_later_batch_lost_is_kept_for_it() {
        let mut timeline = Timeline::new();
        timeline.refund_ns(0, MS, MS, 0);
        assert_eq!(timeline.refund_ns(350_000, MS, MS, 360 * MS), 0);
        assert_eq!(timeline.refund_ns(350_000, 360 * MS, MS, 0), 350 * MS);
    }
}
