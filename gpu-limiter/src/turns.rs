//! The container's turns on a GPU, as given by the host's arbiter. Launches pass freely if there is no arbiter, or once it has stopped.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::limits::{LimitsPage, Turn};
use vgpu_region::uuid::Uuid;

use crate::tuning::{MAX_BURST_NS, PERIOD_NS};

/// The arbiter counts as stopped when its heartbeat has stood still for this long, in nanoseconds.
const HEARTBEAT_TIMEOUT_NS: u64 = 100_000_000;
/// Highest share that can be lent, in percent. With 100 the container would not be limited, and no longer be measured.
const MAX_LENT_PERCENT: u32 = 99;

/// Whether launches may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// They may.
    Open,
    /// They have to wait until the turn's word differs from this one.
    Closed(u32),
}

/// The turns on one GPU as seen by this process.
#[derive(Debug)]
pub struct Turns {
    page: &'static LimitsPage,
    uuid: Uuid,
    turn: AtomicPtr<Turn>,
    heartbeat: AtomicU32,
    heartbeat_at: AtomicU64,
    word: AtomicU32,
    began_at: AtomicU64,
    lent_percent: AtomicU32,
    next_search_at: AtomicU64,
    is_crowded: AtomicBool,
    is_switched: AtomicBool,
}

impl Turns {
    /// Returns the turns on the GPU with this UUID.
    pub fn new(page: &'static LimitsPage, uuid: Uuid) -> Self {
        let (zero, long) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        let turn = AtomicPtr::new(core::ptr::null_mut());
        Self {
            page,
            uuid,
            turn,
            heartbeat: zero(),
            heartbeat_at: long(),
            word: zero(),
            began_at: long(),
            lent_percent: zero(),
            next_search_at: long(),
            is_crowded: AtomicBool::new(false),
            is_switched: AtomicBool::new(false),
        }
    }

    /// Sets whether the process's channels are switched off outside its turns. Then launches need not wait for a turn.
    pub fn set_switched(&self, is_switched: bool) {
        self.is_switched.store(is_switched, Relaxed);
    }

    /// Returns true if the process's channels are switched off outside its turns.
    pub fn is_switched(&self) -> bool {
        self.is_switched.load(Relaxed)
    }

    /// Returns the arbiter's entry for the GPU unless its heartbeat has stood still for a tenth of a second.
    pub fn living(&self, now: u64) -> Option<&'static Turn> {
        let turn = self.turn().or_else(|| self.search(now))?;
        let heartbeat = turn.beat.load(Relaxed);
        if self.heartbeat.swap(heartbeat, Relaxed) != heartbeat {
            self.heartbeat_at.store(now, Relaxed);
        }
        (now.saturating_sub(self.heartbeat_at.load(Relaxed)) <= HEARTBEAT_TIMEOUT_NS).then_some(turn)
    }

    /// Returns the GPU's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the limits page.
    pub fn page(&self) -> &'static LimitsPage {
        self.page
    }

    /// Returns the arbiter's entry for the GPU, if one was found. Its word can be waited on.
    pub fn turn(&self) -> Option<&'static Turn> {
        // SAFETY: null, or a pointer into the page, which is never unmapped.
        unsafe { self.turn.load(Acquire).as_ref() }
    }

    /// Searches for the arbiter's entry, once in each period.
    fn search(&self, now: u64) -> Option<&'static Turn> {
        if now < self.next_search_at.load(Relaxed) {
            return None;
        }
        self.next_search_at.store(now + PERIOD_NS, Relaxed);
        let turn = self.page.turn(self.uuid)?;
        self.turn.store(core::ptr::from_ref(turn).cast_mut(), Release);
        Some(turn)
    }

    /// Returns the share lent by the arbiter at the last poll, in percent.
    #[inline]
    pub fn lent_percent(&self) -> u32 {
        self.lent_percent.load(Relaxed)
    }

    /// Returns the turn's word at the last poll.
    pub fn word(&self) -> u32 {
        self.word.load(Relaxed)
    }

    /// Returns true if the turn was over at the last poll.
    pub fn is_over(&self) -> bool {
        Turn::state(self.word()) == Turn::CLOSED
    }

    /// Returns true if containers took turns at the last poll.
    pub fn are_taken(&self) -> bool {
        Turn::state(self.word()) != Turn::FREE
    }

    /// Returns true if another container had work on the GPU outside its turns at the last poll.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded.load(Relaxed)
    }

    /// Polls the arbiter: returns whether launches may pass with `in_flight_ns` nanoseconds of work in flight.
    pub fn poll(&self, now: u64, in_flight_ns: u64) -> TurnState {
        let Some(turn) = self.living(now) else {
            self.lent_percent.store(0, Relaxed);
            self.is_crowded.store(false, Relaxed);
            self.word.store(0, Relaxed);
            return TurnState::Open;
        };
        let word = turn.word.load(Acquire);
        self.lent_percent.store(turn.lent.load(Relaxed).min(MAX_LENT_PERCENT), Relaxed);
        self.is_crowded.store(turn.crowded.load(Relaxed) != 0, Relaxed);
        if self.word.swap(word, Relaxed) != word {
            self.began_at.store(now, Relaxed);
        }
        if self.is_switched() {
            return TurnState::Open;
        }
        match Turn::state(word) {
            Turn::CLOSED => TurnState::Closed(word),
            Turn::OPEN => {
                let length_ns = u64::from(turn.length.load(Relaxed)) * 1000;
                let passed_ns = now.saturating_sub(self.began_at.load(Relaxed));
                // Letting the GPU idle helps no container, so the last launch may outlast the turn; and a turn that is over but not closed goes on, because
                // the arbiter is late.
                if passed_ns + in_flight_ns < length_ns && in_flight_ns < MAX_BURST_NS as u64 || passed_ns > length_ns && in_flight_ns == 0
                {
                    TurnState::Open
                } else {
                    TurnState::Closed(word)
                }
            }
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
        assert_eq!((turns.poll(12 * MS, 0), turns.lent_percent()), (TurnState::Closed(5), 99));
        turn.word.store(8 + Turn::OPEN, Relaxed);
        turn.length.store(10_000, Relaxed);
        assert_eq!(turns.poll(13 * MS, 0), TurnState::Open);
        assert_eq!(turns.poll(21 * MS, MS), TurnState::Open);
        assert_eq!(turns.poll(21 * MS, 3 * MS), TurnState::Closed(10), "the work in flight fills the turn");
        assert_eq!(turns.poll(24 * MS, 0), TurnState::Open, "the arbiter is late, and nothing runs");
        turn.word.store(12 + Turn::CLOSED, Relaxed);
        assert_eq!(turns.poll(111 * MS, 0), TurnState::Closed(13));
        assert_eq!((turns.poll(113 * MS, 0), turns.lent_percent()), (TurnState::Open, 0), "no heartbeat for 100 ms");
        turn.beat.store(2, Relaxed);
        assert_eq!(turns.poll(114 * MS, 0), TurnState::Closed(13), "the arbiter is back");
        turns.set_switched(true);
        assert_eq!((turns.poll(115 * MS, 0), turns.are_taken()), (TurnState::Open, true), "the GPU's scheduler holds the work back");
    }
}
