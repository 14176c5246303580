//! A batch: launches of one stream that are measured together.

use crate::cost_model::LaunchKind;
use crate::engine::Handle;

/// Most launches in a batch. One event, and the accounting after it, then comes with fewer than one launch in a hundred.
pub const MAX_LAUNCHES: usize = 256;

/// Where a batch begins on the GPU's timeline. Zero is [`BatchStart::PreviousEnd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BatchStart {
    /// At the end of the stream's previous batch.
    PreviousEnd = 0,
    /// At its own start event: the stream was idle.
    Event = 1,
}

/// How the end of a batch is known. Zero is [`BatchEnd::Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BatchEnd {
    /// By its end event.
    Event = 0,
    /// No end event was recorded: the batch is charged as expected.
    Guessed = 1,
}

/// Result of the last query of a batch. Saves queries while batches of other streams are settled. All zero is "not queried".
#[derive(Clone, Copy, Debug, Default)]
pub struct LastQuery {
    /// Start on the timeline, valid if `end` is not 0.
    pub start: u64,
    /// End on the timeline; 0 if the batch was not seen to be finished.
    pub end: u64,
    /// Number of the harvest in which the batch was still running.
    pub running_in: u64,
    /// Timeline position from which it was running; 0 if unknown.
    pub running_since: u64,
}

/// Launches that are measured together.
#[derive(Debug)]
pub struct Batch {
    /// Event recorded before the first launch, if [`Batch::start`] says so.
    pub start_event: Handle,
    /// Event recorded behind the last launch, unless [`Batch::end`] is guessed.
    pub end_event: Handle,
    /// Where the batch begins.
    pub start: BatchStart,
    /// How its end is known.
    pub end: BatchEnd,
    /// The batch has a launch of unknown cost.
    pub has_unknown_cost: bool,
    /// The stream was found idle when the batch was closed: it took at most the measured time.
    pub was_found_idle: bool,
    /// The launching thread had just been held back, and needs a while until it launches at full speed.
    pub follows_wake: bool,
    /// All its launches are of one kind.
    pub is_uniform: bool,
    /// One of its launches may wait for other GPUs.
    pub is_collective: bool,
    /// The GPU waits for the stream's host most of the time.
    pub is_host_bound: bool,
    /// Number of launches.
    pub count: u32,
    /// Expected GPU time of the launches, in nanoseconds.
    pub expected_ns: u64,
    /// Time from the start event until the driver had loaded the function, in nanoseconds. The batch begins only then.
    pub loading_ns: u64,
    /// Time within the batch in which the GPU idled because the host had just been woken, in nanoseconds. Not charged.
    pub wake_lag_ns: u64,
    /// Result of the harvester's last query.
    pub last_query: LastQuery,
    /// Kinds of the first [`MAX_LAUNCHES`] launches.
    pub kinds: [LaunchKind; MAX_LAUNCHES],
}

impl Batch {
    /// Returns true if a launch must not be measured together with the launches in the batch. Launches that wait for other GPUs are
    /// measured with launches of their own kind only.
    #[inline]
    pub fn must_not_mix(&self, kind: LaunchKind, is_collective: bool) -> bool {
        (self.is_collective || is_collective) && !(self.is_uniform && self.kinds.first() == Some(&kind))
    }

    /// Adds a launch.
    #[inline]
    pub fn add(&mut self, kind: LaunchKind) {
        self.is_uniform = self.count == 0 || self.is_uniform && self.kinds.first() == Some(&kind);
        if let Some(place) = self.kinds.get_mut(self.count as usize) {
            *place = kind;
        }
        self.count += 1;
    }

    /// Empties the batch; it keeps its events.
    pub fn clear(&mut self) {
        (self.count, self.expected_ns, self.loading_ns, self.wake_lag_ns) = (0, 0, 0, 0);
        (self.start, self.end) = (BatchStart::PreviousEnd, BatchEnd::Event);
        (self.was_found_idle, self.has_unknown_cost) = (false, false);
        (self.follows_wake, self.is_collective, self.is_host_bound) = (false, false, false);
        self.last_query = LastQuery::default();
    }
}
