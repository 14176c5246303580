//! One tenant of one GPU, as the arbiter sees it.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, Turn};

/// Where a tenant's budget is read.
///
/// Its region is never mapped here: the tenant can cut the file short, and touching what is gone would end the arbiter.
#[derive(Debug)]
pub enum Source {
    /// In its region's file, at this offset.
    File(File, u64),
    /// In memory, for tests.
    Memory(&'static Budget),
}

/// What a tenant tells, true or not.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    activity: u64,
    ahead: u64,
    want: u64,
    drained: u64,
}

impl Source {
    fn read(&self) -> Told {
        match self {
            Self::Memory(budget) => Told {
                activity: budget.activity.load(Relaxed),
                ahead: budget.ahead.load(Relaxed),
                want: budget.want.load(Relaxed),
                drained: budget.drained.load(Relaxed),
            },
            Self::File(file, offset) => {
                let mut words = [[0; 8]; 4];
                // The four lie one after the other. What cannot be read tells nothing: such a tenant never has the GPU.
                if file.read_exact_at(words.as_flattened_mut(), offset + offset_of!(Budget, activity) as u64).is_err() {
                    return Told::default();
                }
                let [activity, ahead, want, drained] = words.map(u64::from_ne_bytes);
                Told { activity, ahead, want, drained }
            }
        }
    }
}

const _: () = assert!(
    offset_of!(Budget, ahead) == offset_of!(Budget, activity) + 8
        && offset_of!(Budget, want) == offset_of!(Budget, activity) + 16
        && offset_of!(Budget, drained) == offset_of!(Budget, activity) + 24
);

/// The most that a tenant is believed to have in flight, in µs.
const MOST_AHEAD: u64 = 200_000;
/// How long what a tenant has in flight may last after its turn, in µs. From then on the others do without it, and the driver shares the
/// GPU between them and that.
pub const PATIENCE: u64 = 50_000;
/// For how long that is believed, in µs.
const FORGOTTEN: u64 = 20_000_000;
/// A tenant that has launched nothing for so long after its work should have ended is idle, in µs.
const GAP: u64 = 1_000;

/// A tenant that asks for its next turn sooner than this after its last one has had no rest, in µs.
const REST: u64 = 2_000;

/// A tenant's place at the table. Its memory outlives it.
#[derive(Debug)]
pub struct Tenant {
    /// Its limits.
    pub limit: &'static GpuLimit,
    /// Where it is told its turns.
    pub turn: &'static Turn,
    source: Source,
    told: Told,
    /// 0 goes before 1.
    pub priority: u32,
    /// Until when its work should last, in µs.
    busy_until: u64,
    /// When it was last seen at work, in µs.
    pub last_seen: u64,
    /// It has work in flight long after its turn: it has no more turns until that is finished.
    pub stuck: bool,
    /// The word of a closed turn, and since when it is that.
    closed: (u32, u64),
    /// It did not go on asking when its last turn was over, or has had none yet.
    pub rests: bool,
    /// When its last turn was over, until it asks again.
    over_since: Option<u64>,
    /// GPU time it has had by its weight: who has the least is next.
    pub passed: f64,
}

impl Tenant {
    /// A seat whose tenant has not been seen at work yet.
    #[must_use]
    pub fn new(limit: &'static GpuLimit, turn: &'static Turn, source: Source, priority: u32) -> Self {
        let told = source.read();
        Self {
            limit,
            turn,
            source,
            told,
            priority,
            busy_until: 0,
            last_seen: 0,
            stuck: false,
            closed: (0, 0),
            rests: true,
            over_since: None,
            passed: 0.0,
        }
    }

    /// Its share in percent, from 1 to 99; `None` without a limit: then it knows no turns.
    #[must_use]
    pub fn weight(&self) -> Option<u32> {
        self.limit.cores_limit()
    }

    /// Looks at what it tells. `now` in µs.
    pub fn look(&mut self, now: u64) {
        // Who waits for a turn tells nothing new before it has one.
        if self.wants() && self.has_drained() && !self.stuck {
            self.last_seen = now;
            return;
        }
        let told = self.source.read();
        if told.activity != self.told.activity {
            self.busy_until = now + (told.ahead / 1000).min(MOST_AHEAD) + GAP;
        }
        self.told = told;
        if let Some(over) = self.over_since
            && self.wants()
        {
            self.rests = now > over + REST;
            self.over_since = None;
        }
        let word = self.turn.word.load(Relaxed);
        if self.closed.0 != word {
            self.closed = (word, now);
        }
        // Finished work is told when the program next launches or waits; what the killed had in flight is told for ever.
        let over = match Turn::state(word) {
            Turn::CLOSED if !self.has_drained() => self.closed.1,
            Turn::FREE => self.busy_until,
            _ => now,
        };
        self.stuck = told.ahead != 0 && (PATIENCE..FORGOTTEN).contains(&now.saturating_sub(over));
        if self.is_busy(now) || self.wants() {
            self.last_seen = now;
        }
    }

    /// Whether it should have work in flight.
    #[must_use]
    pub fn is_busy(&self, now: u64) -> bool {
        now < self.busy_until
    }

    /// Until when what it has in flight should last, in µs.
    #[must_use]
    pub fn busy_until(&self) -> u64 {
        self.busy_until.saturating_sub(GAP)
    }

    /// Whether a launch of it waits for its turn.
    #[must_use]
    pub fn wants(&self) -> bool {
        let word = self.turn.word.load(Relaxed);
        Turn::state(word) != Turn::FREE && self.told.want == u64::from(word)
    }

    /// Whether it says that nothing of it is in flight since its turn was closed.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        let word = self.turn.word.load(Relaxed);
        Turn::state(word) == Turn::CLOSED && self.told.drained == u64::from(word)
    }

    /// Tells it a state of [`Turn`], for `length` µs if it is an open turn. Nothing is done if that is what it was told last.
    pub fn tell(&self, state: u32, length: u64) {
        let word = self.turn.word.load(Relaxed);
        if Turn::state(word) == state && state != Turn::OPEN {
            return;
        }
        self.turn.length.store(u32::try_from(length).unwrap_or(u32::MAX), Relaxed);
        self.turn.word.store((word & !3).wrapping_add(4) | state, Release);
        wake(&self.turn.word);
    }

    /// Its turn is over.
    pub fn end_turn(&mut self, now: u64) {
        self.tell(Turn::CLOSED, 0);
        (self.rests, self.over_since) = (true, Some(now));
    }

    /// Tells it whether others have work on the GPU outside their turns.
    pub fn crowd(&self, crowded: bool) {
        self.turn.crowded.store(u32::from(crowded), Relaxed);
    }

    /// Lends it a share, in percent; 0 is none.
    pub fn lend(&self, percent: u32) {
        self.turn.lent.store(percent, Relaxed);
    }
}

fn wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: the word is in shared memory that stays mapped; waking nobody is fine.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
