//! What a finished batch is charged for, and what is learned from it; and what is charged before it has ended.

use core::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Rate;

use crate::engine::Engine;
use crate::meter::Meter;
use crate::stream::{Batch, Stream};
use crate::timeline::Books;

/// What the event that ends a batch adds to its time, in nanoseconds (H200, driver 580: 2.0 µs with kernels of 1 µs to 200 µs).
const EVENT_COST: u64 = 2_000;
/// What a pair of events around a batch adds in an idle stream (H200, driver 580: 3.4 µs).
const PAIR_COST: u64 = 3_400;
/// What we take of the host's time for each batch, in nanoseconds, while the GPU has nothing left to do (H200 and H100, host-bound PyTorch
/// loops), and the part of a batch that this is at most. It is not charged where the GPU waits for the host.
const OWN_BATCH: u64 = 5_000;
const OWN_PART: u64 = 32;
/// And for each launch: one part of so many of the time from one to the next, as the more the program does in between, the less of what we
/// need is left in the caches (H200's host: 0.2 µs in 15 and 0.7 in 28); at least and at most so many nanoseconds.
const OWN_LAUNCH_PART: u64 = 50;
const OWN_LAUNCH: (u64, u64) = (200, 700);
/// So many batches in a row from one stream mean that it is the only one.
const MANY: u32 = 16;
/// Work is charged before it has ended once it has run for so many nanoseconds.
const EARLY: u64 = 2_000_000;

/// A finished batch on the time line. All in nanoseconds.
struct Span {
    /// How long it lay in its stream.
    length: u64,
    /// What of that is not the program's doing.
    overhead: u64,
    /// From where nothing is charged yet.
    begins: u64,
    end: u64,
    /// How much of it is not charged yet.
    news: u64,
}

impl Span {
    /// Whether nothing else ran beside it. Of one whose end nobody saw that is not known.
    fn is_alone(&self, batch: &Batch) -> bool {
        !batch.guessed && self.news >= self.length
    }
}

impl Books {
    /// What of the time line from `from` on a batch adds that was in its stream from `start` to `end`.
    fn span(&mut self, batch: &Batch, (from, start, end): (u64, u64, u64)) -> Span {
        let begins = from.max(self.busy_until);
        // While this was in its stream, others' work may have come and gone.
        let covers = !batch.guessed && !batch.collective && start < self.busy_until;
        let filled = if covers { self.gaps.fill(start) } else { 0 };
        Span { length: end - start, overhead: overhead(batch, end - start), begins, end, news: end.saturating_sub(begins) + filled }
    }

    /// Marks on the time line what was charged for a batch.
    fn enter(&mut self, batch: &Batch, span: &Span, own: u64) {
        // What ran beside a kernel that waited for other GPUs is charged, but for as much as that was.
        let charged_to = if batch.collective { span.end.min(span.begins + own) } else { span.end };
        let before = self.busy_until;
        self.busy_until = before.max(charged_to);
        if before != 0 {
            self.gaps.leave(before, if batch.guessed { span.end } else { span.begins.min(charged_to) });
        }
        if span.is_alone(batch) && batch.fresh {
            // Its own events, or its host's being late, are no pause of who worked meanwhile.
            let spared = span.news.saturating_sub(own).min(charged_to.saturating_sub(span.begins));
            self.gaps.leave(span.begins, span.begins + spared);
        }
    }
}

impl Meter {
    /// Charges a finished batch: what of the time line from `from` to its end has not been charged yet.
    pub fn settle(&self, engine: &impl Engine, books: &mut Books, rate: Rate, stream: &Stream, times: (u64, u64, u64)) {
        // SAFETY: we are the harvester, and `head` has just seen this batch.
        let Some(batch) = (unsafe { stream.oldest() }) else { return };
        books.alone = if core::ptr::eq(books.last, stream) { books.alone.saturating_add(1) } else { 0 };
        books.last = stream;
        self.side_by_side.store(books.alone <= MANY && self.count.load(Relaxed) > 1, Relaxed);
        let span = books.span(batch, times);
        // The driver shares the GPU between this work and another container's: what is known of it counts, not how long it lay there.
        let crowded = self.account.gate.is_crowded() && !batch.unknown && span.length > batch.expected + batch.expected / 2;
        let own = self.own(batch, &span, crowded);
        self.pay(books, rate, own);
        books.enter(batch, &span, own);
        stream.last_end.store(span.end, Relaxed);
        if !batch.guessed {
            self.learn(batch, &span, own, crowded);
            // The anchor is an event that nobody will record again: the batch gets the old one for its next round.
            (books.anchor, books.anchor_at, batch.end) = (batch.end, span.end, books.anchor);
        }
        self.account.arrived(batch);
        // SAFETY: as above.
        unsafe { stream.done() };
        self.mark.store(engine.now(), Relaxed);
        self.harvested.fetch_add(1, Relaxed);
    }

    /// What of a batch is the program's own and not charged yet.
    fn own(&self, batch: &Batch, span: &Span, crowded: bool) -> u64 {
        let abreast = self.account.rounds.abreast();
        let own = match batch.guessed {
            // Nobody saw when it ended: it is charged as expected, and leaves no mark on the time line, where it could be wrong.
            true => batch.expected,
            false if span.is_alone(batch) => span.news.saturating_sub(span.overhead),
            // Beside other streams' work the overhead holds up one of them; the events of who had none in flight have not held up any.
            false if abreast > 1 => span.news.saturating_sub(if batch.fresh { batch.late } else { span.overhead } / abreast),
            false => span.news,
        };
        if crowded || batch.collective { own.min(batch.expected) } else { own }
    }

    /// Learns what launches cost from a batch that was measured.
    fn learn(&self, batch: &Batch, span: &Span, own: u64, crowded: bool) {
        // A batch that others cover says little of what its launches cost: no less than its part of all that run side by side. Nor more
        // than it lay there, though what others have begun and not finished is charged with it.
        let streams = u64::from(self.count.load(Relaxed)).clamp(1, 16);
        let alone = span.length.saturating_sub(span.overhead);
        let seen = own.clamp(alone / streams, alone);
        let steady = !crowded && batch.lagged < span.length / 16;
        // Of a uniform batch one launch stands for all.
        let (each, noted) = if batch.uniform { (u64::from(batch.count.max(1)), 1) } else { (1, batch.count) };
        match batch.kinds.get(..noted as usize) {
            Some(&[kind]) if batch.collective => self.account.costs.learn_least(kind, alone / each),
            // What it added to the time line, not how long it lay there: four streams' launches side by side take a quarter each.
            // A pause that counts as used is none of its cost, or the next one would look shorter than it is.
            Some(kinds) if steady && !batch.collective && (!batch.at_most || seen < batch.expected) => {
                self.account.costs.learn(kinds, seen / each)
            }
            _ => {}
        }
    }

    fn pay(&self, books: &mut Books, rate: Rate, amount: u64) {
        let paid = amount.min(books.early);
        books.early -= paid;
        if amount > paid {
            self.account.charge((amount - paid) as i64, rate);
        }
    }

    /// Charges what has been running for long, or takes back what was charged so.
    pub fn charge_early(&self, engine: &impl Engine, books: &mut Books, rate: Rate, running: bool) {
        let due = if running { engine.now().saturating_sub(self.mark.load(Relaxed)) } else { 0 };
        if due > books.early && due > EARLY {
            self.account.charge((due - books.early) as i64, rate);
            books.early = due;
        } else if !running && books.early != 0 {
            self.account.charge(-(books.early as i64), rate);
            books.early = 0;
        }
    }
}

/// What of a batch's length is not the program's doing.
fn overhead(batch: &Batch, length: u64) -> u64 {
    if batch.guessed {
        return 0;
    }
    let by_us = if batch.behind { taken_of_host(length, batch.count) } else { 0 };
    batch.late + by_us + if batch.fresh { PAIR_COST } else { EVENT_COST }
}

/// What we took of the host's time in a batch of this length and so many launches, in nanoseconds.
fn taken_of_host(length: u64, count: u32) -> u64 {
    let count = u64::from(count.max(1));
    let (least, most) = OWN_LAUNCH;
    (OWN_BATCH + count * (length / count / OWN_LAUNCH_PART).clamp(least, most)).min(length / OWN_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What toggling the limit in one process showed on an H200, in batches of four steps of an MLP and one of a training step.
    #[test]
    fn what_we_take_of_a_host_is_what_was_seen() {
        for (name, length, count, seen) in [("MLP", 1_404_000, 96, 26_000_u64), ("training step", 3_375_000, 120, 82_000)] {
            let taken = taken_of_host(length, count);
            assert!(taken.abs_diff(seen) < length / 150, "{name}: {taken} of {length} ns, seen {seen}");
        }
        assert_eq!(taken_of_host(2_000_000, 0), 5_700, "a batch that holds what others launched");
        assert_eq!(taken_of_host(32_000, 100), 1_000, "a small part at most");
        assert_eq!(taken_of_host(0, 1), 0);
    }
}
