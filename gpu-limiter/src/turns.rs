//! The container's turns on a GPU, as given by the host's arbiter. Launches pass freely if there is no arbiter, or once it has stopped.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::limits::{LimitsPage, Turn};
use vgpu_region::uuid::Uuid;

use crate::tuning::{MAX_BURST_NS, PERIOD_NS};

/// The arbiter counts as stopped when its heartbeat has stood still for this long, in nanoseconds.
const HEARTBEAT_TIMEOUT_NS: u64 = 100_000_000;
/// Heartbeats after which the arbiter has looked at a process since its first launch, and acted: the first may belong to a look that had
/// begun before, and the last precedes what the arbiter does then.
const FIRST_LOOK_BEATS: u64 = 3;
/// Value of [`Seen::first_beat`] once the arbiter has looked, or if there was none.
const LOOKED: u64 = u64::MAX;
/// Highest share that can be lent, in percent. With 100 the container would not be limited, and no longer be measured.
const MAX_LENT_PERCENT: u32 = 99;

/// Whether launches may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// They may.
    Open,
    /// They have to wait until the turn's word differs from this one.
    Closed(u32),
    /// They have to wait until the arbiter has looked at this process.
    Unseen,
}

/// The turns on one GPU as seen by this process.
#[derive(Debug)]
pub struct Turns {
    /// The container's limits page.
    pub page: &'static LimitsPage,
    /// The GPU.
    pub uuid: Uuid,
    /// The process's channels are switched off outside its turns: launches need not wait for a turn.
    pub is_switched: AtomicBool,
    pub(crate) seen: Seen,
}

/// What was seen at the last poll.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    turn: AtomicPtr<Turn>,
    next_search_at: AtomicU64,
    heartbeat: AtomicU32,
    heartbeat_at: AtomicU64,
    /// Heartbeat at the process's first launch, plus 1; 0 before it, [`LOOKED`] once the arbiter has looked.
    first_beat: AtomicU64,
    /// The turn's word, and host time at which it was first seen, in nanoseconds.
    pub word: AtomicU32,
    began_at: AtomicU64,
    /// Share lent by the arbiter, in percent.
    pub lent_percent: AtomicU32,
}

impl Turns {
    /// Returns the turns on the GPU with this UUID.
    pub fn new(page: &'static LimitsPage, uuid: Uuid) -> Self {
        Self { page, uuid, is_switched: AtomicBool::new(false), seen: Seen::default() }
    }

    /// Returns the arbiter's entry for the GPU unless its heartbeat has stood still for a tenth of a second.
    pub fn living(&self, now: u64) -> Option<&'static Turn> {
        let turn = self.turn().or_else(|| self.search(now))?;
        let heartbeat = turn.beat.load(Relaxed);
        if self.seen.heartbeat.swap(heartbeat, Relaxed) != heartbeat {
            self.seen.heartbeat_at.store(now, Relaxed);
        }
        (now.saturating_sub(self.seen.heartbeat_at.load(Relaxed)) <= HEARTBEAT_TIMEOUT_NS).then_some(turn)
    }

    /// Returns the arbiter's entry for the GPU, if one was found. Its word can be waited on.
    pub(crate) fn turn(&self) -> Option<&'static Turn> {
        // SAFETY: null, or a pointer into the page, which is never unmapped.
        unsafe { self.seen.turn.load(Acquire).as_ref() }
    }

    /// Searches for the arbiter's entry, once in each period.
    fn search(&self, now: u64) -> Option<&'static Turn> {
        if now < self.seen.next_search_at.load(Relaxed) {
            return None;
        }
        self.seen.next_search_at.store(now + PERIOD_NS, Relaxed);
        let turn = self.page.turn(self.uuid)?;
        self.seen.turn.store(core::ptr::from_ref(turn).cast_mut(), Release);
        Some(turn)
    }

    /// Returns the turn's word at the last poll.
    pub(crate) fn word(&self) -> u32 {
        self.seen.word.load(Relaxed)
    }

    /// Returns true if containers took turns at the last poll.
    pub(crate) fn are_taken(&self) -> bool {
        Turn::state(self.word()) != Turn::FREE
    }

    /// Returns whether the arbiter, if it lives, has looked at this process since its first launch. Until then that launch waits: if many
    /// tenants begin at once, each one's first kernel would be charged for the slices of all others, which is seconds of a share of 1%.
    fn has_looked(&self, living: Option<&Turn>, word: u32) -> bool {
        let first = self.seen.first_beat.load(Relaxed);
        if first == LOOKED {
            return true;
        }
        let beat = living.filter(|_| Turn::state(word) == Turn::FREE).map(|turn| u64::from(turn.beat.load(Relaxed)) + 1);
        match beat {
            Some(beat) if first == 0 => {
                _ = self.seen.first_beat.compare_exchange(0, beat, Relaxed, Relaxed);
                false
            }
            // An arbiter that was restarted counts from 1 again.
            Some(beat) if (first..first + FIRST_LOOK_BEATS).contains(&beat) => false,
            _ => {
                self.seen.first_beat.store(LOOKED, Relaxed);
                true
            }
        }
    }

    /// Returns the counter of the time that the container lost to others' slices, in microseconds.
    pub(crate) fn lost_us(&self) -> u32 {
        self.turn().map_or(0, |turn| turn.lost_us.load(Relaxed))
    }

    /// Polls the arbiter: returns whether launches may pass with `in_flight_ns` nanoseconds of work in flight.
    pub fn poll(&self, now: u64, in_flight_ns: u64) -> TurnState {
        let living = self.living(now);
        let (word, lent) = living.map_or((0, 0), |turn| (turn.word.load(Acquire), turn.lent.load(Relaxed).min(MAX_LENT_PERCENT)));
        self.seen.lent_percent.store(lent, Relaxed);
        if self.seen.word.swap(word, Relaxed) != word {
            self.seen.began_at.store(now, Relaxed);
        }
        if !self.has_looked(living, word) {
            return TurnState::Unseen;
        }
        let Some(turn) = living.filter(|_| !self.is_switched.load(Relaxed)) else { return TurnState::Open };
        let length_ns = u64::from(turn.length.load(Relaxed)) * 1000;
        let passed_ns = now.saturating_sub(self.seen.began_at.load(Relaxed));
        // Letting the GPU idle helps no container, so the last launch may outlast the turn; and a turn that is over but not closed goes on, because
        // the arbiter is late.
        let has_room = passed_ns + in_flight_ns < length_ns && in_flight_ns < MAX_BURST_NS as u64;
        match Turn::state(word) {
            Turn::OPEN if has_room || passed_ns > length_ns && in_flight_ns == 0 => TurnState::Open,
            Turn::OPEN | Turn::CLOSED => TurnState::Closed(word),
            _ => TurnState::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn opens_closes_and_outlives_the_arbiter() {
        let page: &'static LimitsPage = Box::leak(Box::new(LimitsPage::new([])));
        let uuid = Uuid([5; 16]);
        let turns = Turns::new(page, uuid);
        assert_eq!(turns.poll(MS, 0), TurnState::Open, "no arbiter");
        let turn = page.turn_for(uuid).unwrap();
        turn.beat.store(1, Relaxed);
        turn.word.store(4 + Turn::CLOSED, Relaxed);
        turn.lent.store(100, Relaxed);
        assert_eq!((turns.poll(12 * MS, 0), turns.seen.lent_percent.load(Relaxed)), (TurnState::Closed(5), 99));
        turn.word.store(8 + Turn::OPEN, Relaxed);
        turn.length.store(10_000, Relaxed);
        assert_eq!(turns.poll(13 * MS, 0), TurnState::Open);
        assert_eq!(turns.poll(21 * MS, MS), TurnState::Open);
        assert_eq!(turns.poll(21 * MS, 3 * MS), TurnState::Closed(10), "the work in flight fills the turn");
        assert_eq!(turns.poll(24 * MS, 0), TurnState::Open, "the arbiter is late, and nothing runs");
        turn.word.store(12 + Turn::CLOSED, Relaxed);
        assert_eq!(turns.poll(111 * MS, 0), TurnState::Closed(13));
        assert_eq!((turns.poll(113 * MS, 0), turns.seen.lent_percent.load(Relaxed)), (TurnState::Open, 0), "no heartbeat for 100 ms");
        turn.beat.store(2, Relaxed);
        assert_eq!(turns.poll(114 * MS, 0), TurnState::Closed(13), "the arbiter is back");
        turns.is_switched.store(true, Relaxed);
        assert_eq!((turns.poll(115 * MS, 0), turns.are_taken()), (TurnState::Open, true), "the GPU's scheduler holds the work back");
    }

    #[test]
    fn the_first_launch_waits_until_the_arbiter_has_looked() {
        let page: &'static LimitsPage = Box::leak(Box::new(LimitsPage::new([])));
        let uuid = Uuid([5; 16]);
        let turn = page.turn_for(uuid).unwrap();
        let poll = |turns: &Turns, beat: u32| {
            turn.beat.store(beat, Relaxed);
            turns.poll(u64::from(beat) * 10 * MS, 0)
        };
        let first = Turns::new(page, uuid);
        first.is_switched.store(true, Relaxed);
        let states: Vec<TurnState> = (100..104).map(|beat| poll(&first, beat)).collect();
        assert_eq!(states, [TurnState::Unseen, TurnState::Unseen, TurnState::Unseen, TurnState::Open]);
        assert_eq!((poll(&first, 110), poll(&first, 0)), (TurnState::Open, TurnState::Open), "once for each process");

        let stopped = Turns::new(page, uuid);
        assert_eq!(poll(&stopped, 120), TurnState::Unseen);
        assert_eq!(stopped.poll(1_301 * MS, 0), TurnState::Open, "the arbiter has stopped");
        assert_eq!(poll(&stopped, 121), TurnState::Open, "it goes on, and the process has begun");

        let second = Turns::new(page, uuid);
        second.is_switched.store(true, Relaxed);
        turn.word.store(4 + Turn::CLOSED, Relaxed);
        assert_eq!(poll(&second, 130), TurnState::Open, "the arbiter has its turns already");
    }
}
