//! The container's turns on a GPU, as the host's arbiter gives them. Without an arbiter, or once it is gone, the gate is open.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use vgpu_region::limits::{LimitsPage, Turn};
use vgpu_region::uuid::Uuid;

/// The arbiter is gone when it has not been heard of for so many nanoseconds.
const SILENCE: u64 = 100_000_000;
/// The most that can be lent: a container that is not limited at all would not be seen any more.
const MOST_LENT: u32 = 99;
/// How often to look whether there is an arbiter by now, in nanoseconds.
const LOOK: u64 = 10_000_000;
/// No more than so many nanoseconds of work are launched ahead in a turn: whoever is waited for by another is finished so soon.
pub const AHEAD: u64 = 4_000_000;

/// Whether launches may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// They may.
    Open,
    /// Not before the turn's word changes.
    Closed(u32),
}

/// A GPU's gate in this process.
#[derive(Debug)]
pub struct Gate {
    page: &'static LimitsPage,
    uuid: Uuid,
    turn: AtomicPtr<Turn>,
    beat: AtomicU32,
    heard: AtomicU64,
    word: AtomicU32,
    began: AtomicU64,
    lent: AtomicU32,
    look_at: AtomicU64,
    crowded: AtomicBool,
}

impl Gate {
    /// The gate of the GPU with this UUID.
    pub fn new(page: &'static LimitsPage, uuid: Uuid) -> Self {
        let (zero, long) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        let turn = AtomicPtr::new(core::ptr::null_mut());
        Self {
            page,
            uuid,
            turn,
            beat: zero(),
            heard: long(),
            word: zero(),
            began: long(),
            lent: zero(),
            look_at: long(),
            crowded: AtomicBool::new(false),
        }
    }

    /// Whose gate it is.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The limits page.
    pub fn page(&self) -> &'static LimitsPage {
        self.page
    }

    /// What the arbiter writes to, for waiting.
    pub fn turn(&self) -> Option<&'static Turn> {
        // SAFETY: null, or in the page, which is never unmapped.
        unsafe { self.turn.load(Acquire).as_ref() }
    }

    /// Looks for the arbiter's place for this GPU every now and then.
    fn find(&self, now: u64) -> Option<&'static Turn> {
        if now < self.look_at.load(Relaxed) {
            return None;
        }
        self.look_at.store(now + LOOK, Relaxed);
        let turn = self.page.turn(self.uuid)?;
        self.turn.store(core::ptr::from_ref(turn).cast_mut(), Release);
        Some(turn)
    }

    /// The share lent by the arbiter, in percent, as last looked at.
    #[inline]
    pub fn lent(&self) -> u32 {
        self.lent.load(Relaxed)
    }

    /// The turn's word as last looked at.
    pub fn word(&self) -> u32 {
        self.word.load(Relaxed)
    }

    /// Whether the turn is over, as last looked at.
    pub fn is_over(&self) -> bool {
        Turn::state(self.word()) == Turn::CLOSED
    }

    /// Whether turns are taken, as last looked at.
    pub fn takes_turns(&self) -> bool {
        Turn::state(self.word()) != Turn::FREE
    }

    /// Whether another container has work on the GPU outside its turns, as last looked at.
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Relaxed)
    }

    /// Whether launches may pass now, with so many nanoseconds of work in flight.
    pub fn pass(&self, now: u64, in_flight: u64) -> Pass {
        let Some(turn) = self.turn().or_else(|| self.find(now)) else { return Pass::Open };
        let (beat, word) = (turn.beat.load(Relaxed), turn.word.load(Acquire));
        if self.beat.swap(beat, Relaxed) != beat {
            self.heard.store(now, Relaxed);
        }
        if now.saturating_sub(self.heard.load(Relaxed)) > SILENCE {
            self.lent.store(0, Relaxed);
            self.crowded.store(false, Relaxed);
            self.word.store(0, Relaxed);
            return Pass::Open;
        }
        self.lent.store(turn.lent.load(Relaxed).min(MOST_LENT), Relaxed);
        self.crowded.store(turn.crowded.load(Relaxed) != 0, Relaxed);
        if self.word.swap(word, Relaxed) != word {
            self.began.store(now, Relaxed);
        }
        match Turn::state(word) {
            Turn::CLOSED => Pass::Closed(word),
            Turn::OPEN => {
                // The last launch may outlast the turn: a GPU that idles is nobody's.
                let left = u64::from(turn.length.load(Relaxed)) * 1000;
                let passed = now.saturating_sub(self.began.load(Relaxed));
                // A turn that is over and not closed is the arbiter's being late.
                if passed + in_flight < left && in_flight < AHEAD || passed > left && in_flight == 0 {
                    Pass::Open
                } else {
                    Pass::Closed(word)
                }
            }
            _ => Pass::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_region::limits::LimitsPage;
    use vgpu_region::limits::Turn;
    use vgpu_region::uuid::Uuid;

    const MS: u64 = 1_000_000;

    #[test]
    fn opens_closes_and_outlives_the_arbiter() {
        let page: &'static LimitsPage = Box::leak(Box::new(LimitsPage::new([])));
        let uuid = Uuid([5; 16]);
        let gate = Gate::new(page, uuid);
        assert_eq!(gate.pass(MS, 0), Pass::Open, "no arbiter");
        let turn = page.turn_for(uuid).unwrap();
        turn.beat.store(1, Relaxed);
        turn.word.store(4 + Turn::CLOSED, Relaxed);
        turn.lent.store(100, Relaxed);
        assert_eq!((gate.pass(12 * MS, 0), gate.lent()), (Pass::Closed(5), 99));
        turn.word.store(8 + Turn::OPEN, Relaxed);
        turn.length.store(10_000, Relaxed);
        assert_eq!(gate.pass(13 * MS, 0), Pass::Open);
        assert_eq!(gate.pass(21 * MS, MS), Pass::Open);
        assert_eq!(gate.pass(21 * MS, 3 * MS), Pass::Closed(10), "what is in flight fills the turn");
        assert_eq!(gate.pass(24 * MS, 0), Pass::Open, "the arbiter is late, and nothing runs");
        turn.word.store(12 + Turn::CLOSED, Relaxed);
        assert_eq!(gate.pass(111 * MS, 0), Pass::Closed(13));
        assert_eq!((gate.pass(113 * MS, 0), gate.lent()), (Pass::Open, 0), "nothing heard for a tenth of a second");
        turn.beat.store(2, Relaxed);
        assert_eq!(gate.pass(114 * MS, 0), Pass::Closed(13), "it is back");
    }
}
