//! Where the oldest batch of each stream stands, and its place on the GPU's time line.

use core::sync::atomic::Ordering::Relaxed;

use crate::engine::Handle;
use crate::engine::{Engine, Progress};
use crate::idle_gaps::Gaps;
use crate::stream::{Batch, Stream};

/// What a stream's oldest batch turned out to be.
#[derive(Clone, Copy)]
pub enum Head {
    Finished { start: u64, end: u64 },
    Running { since: Option<u64> },
}

/// Where a stream's oldest batch stands; `None` if there is none. Only for the harvester.
pub fn head(engine: &impl Engine, books: &Books, stream: &Stream) -> Option<Head> {
    // SAFETY: we are the harvester.
    let batch = unsafe { stream.oldest() }?;
    if batch.seen.end != 0 {
        return Some(Head::Finished { start: batch.seen.start, end: batch.seen.end });
    }
    if batch.seen.running_in == books.harvest {
        return Some(Head::Running { since: (batch.seen.since != 0).then_some(batch.seen.since) });
    }
    let head = ask(engine, books, batch, stream.last_end.load(Relaxed));
    match head {
        // Before the line has its first event, places mean nothing yet.
        Head::Finished { start, end } if !books.anchor.is_null() => (batch.seen.start, batch.seen.end) = (start, end),
        Head::Finished { .. } => {}
        Head::Running { since } => {
            let known = if books.anchor.is_null() { None } else { since };
            (batch.seen.running_in, batch.seen.since) = (books.harvest, known.unwrap_or(0));
        }
    }
    Some(head)
}

/// Asks the driver; `before` is where the last batch ended.
fn ask(engine: &impl Engine, books: &Books, batch: &Batch, before: u64) -> Head {
    if batch.guessed {
        let start = if batch.fresh { place(engine, books, batch.start) } else { None }.unwrap_or(before);
        return Head::Finished { start, end: start };
    }
    match engine.progress(batch.end) {
        Progress::Done => {
            let end = place(engine, books, batch.end).unwrap_or(books.busy_until + batch.expected);
            let start = if batch.fresh {
                engine.between(batch.start, batch.end).map_or(before, |length| end.saturating_sub_signed(length) + batch.loading)
            } else {
                before
            };
            Head::Finished { start: start.min(end), end }
        }
        // It may be waiting for other GPUs.
        Progress::Pending if batch.collective => Head::Running { since: None },
        Progress::Pending if !batch.fresh => Head::Running { since: Some(before) },
        Progress::Pending if batch.seen.since != 0 => Head::Running { since: Some(batch.seen.since) },
        Progress::Pending if engine.progress(batch.start) == Progress::Done => {
            Head::Running { since: place(engine, books, batch.start).map(|start| start + batch.loading) }
        }
        Progress::Pending => Head::Running { since: None },
        // What can no longer be asked counts as long as expected.
        Progress::Lost => Head::Finished { start: before, end: before + batch.expected },
    }
}

/// An event's place on the time line.
fn place(engine: &impl Engine, books: &Books, event: Handle) -> Option<u64> {
    // The line begins somewhere, so that what lies before its first event has a place too.
    const ORIGIN: u64 = 1 << 60;
    if books.anchor.is_null() {
        return Some(ORIGIN);
    }
    engine.between(books.anchor, event).map(|distance| books.anchor_at.saturating_add_signed(distance))
}

/// The harvester's own.
#[derive(Debug)]
pub struct Books {
    /// A finished event whose place on the time line is known; every other one is placed by its distance from it.
    pub anchor: Handle,
    pub anchor_at: u64,
    pub busy_until: u64,
    /// Where nothing was charged before that.
    pub gaps: Gaps,
    /// Which harvest this is, from 1.
    pub harvest: u64,
    /// Charged early and not yet seen in measured time.
    pub early: u64,
    /// The stream of the last batch, and how many were from it without another between.
    pub last: *const Stream,
    pub alone: u32,
}
