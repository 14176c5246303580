//! Charges batches: finished ones by their measured time, running ones in advance. Learns costs from them.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Rate;

use crate::batch::{Batch, BatchEnd, BatchStart};
use crate::engine::Engine;
use crate::meter::Meter;
use crate::stream::Stream;
use crate::timeline::Timeline;
use crate::tuning::{BATCH_NS, EVENT_NS, OWN_DIVISOR};

/// Running time after which work is charged before it has finished, in nanoseconds: most batches end sooner.
const CHARGE_RUNNING_AFTER_NS: u64 = 2 * BATCH_NS;

/// Number of batches in a row from one stream after which it counts as the only one.
const LONE_STREAM_BATCHES: u32 = 16;

/// Interval of a finished batch on the timeline.
struct Span {
    /// Time for which it lay in its stream, in nanoseconds.
    length_ns: u64,
    /// Part of that which is not the program's own work, in nanoseconds.
    overhead_ns: u64,
    /// Position from which nothing is charged yet.
    new_from: u64,
    end: u64,
    /// Uncharged part of it, in nanoseconds.
    new_ns: u64,
}

impl Span {
    /// Returns true if it overlapped no other work. This is not known for a batch with a guessed end.
    fn is_alone(&self, batch: &Batch) -> bool {
        batch.end != BatchEnd::Guessed && self.new_ns >= self.length_ns
    }
}

impl Timeline {
    /// Returns the span of a batch that lay in its stream from `start` to `end`. `from` is where it may count from.
    fn span(&mut self, batch: &Batch, (from, start, end): (u64, u64, u64)) -> Span {
        let new_from = from.max(self.charged_until);
        // Batches of other streams may have begun and ended while this one lay in its stream.
        let may_fill_gaps = batch.end != BatchEnd::Guessed && !batch.is_collective && start < self.charged_until;
        let filled_ns = if may_fill_gaps { self.gaps.fill_from(start) } else { 0 };
        let length_ns = end - start;
        let own_host_ns = if batch.is_host_bound { length_ns / OWN_DIVISOR } else { 0 };
        let overhead_ns = if batch.end == BatchEnd::Guessed { 0 } else { batch.wake_lag_ns + own_host_ns + EVENT_NS };
        Span { length_ns, overhead_ns, new_from, end, new_ns: end.saturating_sub(new_from) + filled_ns }
    }

    /// Enters a batch that was charged with `charged_ns`.
    fn enter(&mut self, batch: &Batch, span: &Span, charged_ns: u64) {
        // A collective kernel covers the timeline only for the time charged: work during its wait for other GPUs is charged as well.
        let charged_to = if batch.is_collective { span.end.min(span.new_from + charged_ns) } else { span.end };
        let before = self.charged_until;
        self.charged_until = before.max(charged_to);
        if before != 0 {
            let gap_end = if batch.end == BatchEnd::Guessed { span.end } else { span.new_from.min(charged_to) };
            self.gaps.record(before, gap_end);
        }
        if span.is_alone(batch) && batch.start == BatchStart::Event {
            // Time spared to this batch for its events or a late host is not spared to a stream that worked meanwhile.
            let spared_ns = span.new_ns.saturating_sub(charged_ns).min(charged_to.saturating_sub(span.new_from));
            self.gaps.record(span.new_from, span.new_from + spared_ns);
        }
    }
}

impl Meter {
    /// Returns for how long the process's channels were off between two positions on the timeline, in nanoseconds.
    fn off_ns(&self, timeline: &Timeline, from: u64, until: u64) -> u64 {
        match (timeline.offset.host_time(from), timeline.offset.host_time(until)) {
            (Some(from), Some(until)) => self.account.off_times.between(from, until),
            _ => 0,
        }
    }

    /// Charges a stream's oldest batch, which has finished, and learns from it. `times` are the position from which it counts, its start and
    /// its end.
    pub(crate) fn charge_batch(&self, engine: &impl Engine, timeline: &mut Timeline, rate: Rate, stream: &Stream, times: (u64, u64, u64)) {
        // SAFETY: only the harvester has the timeline.
        let Some(batch) = (unsafe { stream.oldest() }) else { return };
        timeline.batches_in_row = if core::ptr::eq(timeline.last_stream, stream) { timeline.batches_in_row.saturating_add(1) } else { 0 };
        timeline.last_stream = stream;
        let is_concurrent = timeline.batches_in_row <= LONE_STREAM_BATCHES && self.stream_count.load(Relaxed) > 1;
        self.has_concurrent_streams.store(is_concurrent, Relaxed);
        let (_, start, end) = times;
        let now = engine.now();
        if batch.end != BatchEnd::Guessed {
            timeline.offset.observe(now, end);
        }
        let mut span = timeline.span(batch, times);
        // The GPU did none of the process's work meanwhile.
        let off_ns = self.off_ns(timeline, start, end);
        span.length_ns = span.length_ns.saturating_sub(off_ns);
        span.new_ns = span.new_ns.saturating_sub(self.off_ns(timeline, span.new_from, end));
        let since_end_ns = timeline.offset.host_time(end).map_or(0, |end| now.saturating_sub(end));
        let refund_ns = timeline.refund_ns(self.account.turns.lost_us(), span.length_ns, batch.expected_ns, since_end_ns);
        let own_ns = self.own_ns(batch, &span).saturating_sub(refund_ns);
        self.charge_measured(timeline, rate, own_ns);
        timeline.enter(batch, &span, own_ns);
        stream.last_end.store(span.end, Relaxed);
        if batch.end != BatchEnd::Guessed {
            if off_ns == 0 {
                self.learn(batch, &span, own_ns, refund_ns);
            }
            // The anchor must never be recorded again. The batch gets the old anchor for its next use.
            (timeline.anchor, timeline.anchor_at, batch.end_event) = (batch.end_event, span.end, timeline.anchor);
        }
        self.account.remove_in_flight(batch);
        // SAFETY: as above.
        unsafe { stream.remove_oldest() };
        self.known_until.store(now, Relaxed);
        self.harvested_batches.fetch_add(1, Relaxed);
    }

    /// Returns the part of a batch that is the program's own and not charged yet, in nanoseconds.
    fn own_ns(&self, batch: &Batch, span: &Span) -> u64 {
        let own_ns = match batch.end {
            // The batch is charged as expected, and is not entered on the timeline, where it could be wrong.
            BatchEnd::Guessed => batch.expected_ns,
            BatchEnd::Event if span.is_alone(batch) => span.new_ns.saturating_sub(span.overhead_ns),
            // Beside other streams' work the overhead is a small part.
            BatchEnd::Event => span.new_ns,
        };
        if batch.is_collective { own_ns.min(batch.expected_ns) } else { own_ns }
    }

    /// Learns the costs of launches from a measured batch.
    fn learn(&self, batch: &Batch, span: &Span, own_ns: u64, refund_ns: u64) {
        // A batch that other streams' work overlaps says little about its launches. They take at least the batch's part of all streams that
        // run side by side, and at most the time for which it lay there, though it may be charged with unfinished work of others.
        let streams = u64::from(self.stream_count.load(Relaxed)).max(1);
        let alone_ns = span.length_ns.saturating_sub(span.overhead_ns + refund_ns);
        let measured_ns = own_ns.clamp(alone_ns / streams, alone_ns);
        // In a uniform batch one launch stands for all.
        let (divisor, kinds) = if batch.is_uniform { (u64::from(batch.count.max(1)), 1) } else { (1, batch.count) };
        match batch.kinds.get(..kinds as usize) {
            Some(&[kind]) if batch.is_collective => self.account.costs.learn_collective(kind, alone_ns / divisor),
            // The time added to the timeline counts: four streams' launches side by side take a quarter each. A pause that counts as used is
            // no part of the cost, or the next pause would look shorter than it is.
            Some(kinds)
                if (refund_ns == 0 || batch.has_unknown_cost)
                    && !batch.is_collective
                    && (!batch.was_found_idle || measured_ns < batch.expected_ns) =>
            {
                self.account.costs.learn(kinds, measured_ns / divisor)
            }
            _ => {}
        }
    }

    /// Charges measured time, less what was charged in advance.
    fn charge_measured(&self, timeline: &mut Timeline, rate: Rate, measured_ns: u64) {
        let charged_ns = measured_ns.min(timeline.charged_early_ns);
        timeline.charged_early_ns -= charged_ns;
        if measured_ns > charged_ns {
            self.account.charge((measured_ns - charged_ns) as i64, rate);
        }
    }

    /// Charges work that has been running for long, or refunds that charge if nothing is running any more.
    pub(crate) fn charge_running(&self, engine: &impl Engine, timeline: &mut Timeline, rate: Rate, is_running: bool) {
        let since = self.known_until.load(Relaxed);
        let ran_until = |now: u64| now.saturating_sub(since).saturating_sub(self.account.off_times.between(since, now));
        let due_ns = if is_running { ran_until(engine.now()) } else { 0 };
        if due_ns > timeline.charged_early_ns && due_ns > CHARGE_RUNNING_AFTER_NS {
            self.account.charge((due_ns - timeline.charged_early_ns) as i64, rate);
            timeline.charged_early_ns = due_ns;
        } else if !is_running && timeline.charged_early_ns != 0 {
            self.account.charge(-(timeline.charged_early_ns as i64), rate);
            timeline.charged_early_ns = 0;
        }
    }
}
