//! The compute budget of one container on one GPU: GPU time accrues at the limit's rate and is charged as it is used.
//!
//! The whole balance is one word, `Budget::zero_at`: the time at which the balance would be exactly zero. The balance at `now` is
//! `(now - zero_at) × rate`, so time passing accrues by itself, and a charge of `c` is one `fetch_add` of `c / rate`. No update
//! can be half done, so a process may be killed at any instruction, and none can be lost, so there is nothing to lock.
//!
//! What is owed is GPU time: when the rate changes, whoever looks next moves `zero_at`, so that a debt made at 10% is paid off eight
//! times as fast at 80%. A charge that falls into that moment may count at either rate.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` as the container's processes see it. The tenant can write anything in here: what it
//! reads back is clamped, and the host side only ever treats it as this tenant's own claim.

use crate::sync::{AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Most GPU time that can be saved up, in nanoseconds: how long a container that was idle may run at full speed.
pub const SAVED: u64 = 10_000_000;
/// The same for a container that takes turns with others: what accrues while they have theirs is not lost, nor what a turn was too short for.
pub const SAVED_BETWEEN_TURNS: u64 = 20_000_000;
/// A debt that takes longer than this to pay off is cut to it, in nanoseconds of wall time.
pub const DEBT: u64 = 600_000_000_000;
/// What a container starts with, in nanoseconds of GPU time.
pub(crate) const FIRST: u64 = 1_000_000;

/// A share of a GPU's time, in percent from 1 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u32);

impl Rate {
    /// `None` where there is no limit: 0, or 100 and more.
    #[must_use]
    pub const fn new(percent: u32) -> Option<Self> {
        if percent == 0 || percent >= 100 { None } else { Some(Self(percent)) }
    }

    /// In percent.
    #[must_use]
    pub const fn percent(self) -> u32 {
        self.0
    }

    /// How long it takes to accrue this much GPU time. Both in nanoseconds.
    #[must_use]
    pub const fn time_for(self, gpu: u64) -> u64 {
        gpu.saturating_mul(100) / self.0 as u64
    }

    const fn accrued_in(self, wall: u64) -> u64 {
        wall / 100 * self.0 as u64 + wall % 100 * self.0 as u64 / 100
    }
}

/// Shared state of the compute limit.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Budget {
    pub(crate) zero_at: AtomicU64,
    /// GPU time charged since the container started, in nanoseconds. For display.
    pub used: AtomicU64,
    /// Time that launches were held back, summed over threads, in nanoseconds. For display.
    pub waited: AtomicU64,
    pub(crate) holder: AtomicU64,
    contender: AtomicU64,
    /// Counts batches of launches: the arbiter sees whether the tenant is at work.
    pub activity: AtomicU64,
    /// How much work was in flight at the last of them, in nanoseconds.
    pub ahead: AtomicU64,
    /// The closed turn's word that a launch waits behind.
    pub want: AtomicU64,
    /// The closed turn's word at which nothing was in flight any more, or as good as nothing.
    pub drained: AtomicU64,
    /// Counts ends of the processes' own turns: who waits for one waits on it as on a futex.
    pub handed: AtomicU32,
    /// The rate by which `zero_at` stands, in percent; 0 before the first look.
    pub(crate) percent: AtomicU32,
    words: [AtomicU64; 118],
}

impl Default for Budget {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            zero_at: zero(),
            used: zero(),
            waited: zero(),
            holder: zero(),
            contender: zero(),
            activity: zero(),
            ahead: zero(),
            want: zero(),
            drained: zero(),
            handed: AtomicU32::new(0),
            percent: AtomicU32::new(0),
            words: core::array::from_fn(|_| zero()),
        }
    }
}

impl Budget {
    /// The GPU time that may be used now; negative is debt. Nanoseconds, between minus [`DEBT`] at this rate and [`SAVED`].
    pub fn balance(&self, now: u64, rate: Rate) -> i64 {
        self.balance_up_to(SAVED, now, rate)
    }

    /// The same with another bound than [`SAVED`].
    pub fn balance_up_to(&self, saved: u64, now: u64, rate: Rate) -> i64 {
        let mut zero_at = self.zero_at.load(Acquire);
        if zero_at == 0 {
            // The first look at a new budget starts it; of two that come first, one does.
            let start = now.saturating_sub(rate.time_for(FIRST));
            zero_at = self.zero_at.compare_exchange(0, start, AcqRel, Acquire).map_or_else(|seen| seen, |_| start);
        }
        if self.percent.load(Relaxed) != rate.percent() {
            zero_at = self.follow(now, rate);
        }
        // No more than that may have accrued: what came before is forfeit.
        let earliest = now.saturating_sub(rate.time_for(saved));
        if zero_at < earliest {
            zero_at = self.zero_at.fetch_max(earliest, AcqRel).max(earliest);
        }
        let latest = now.saturating_add(DEBT);
        if zero_at > latest {
            _ = self.zero_at.compare_exchange(zero_at, latest, AcqRel, Acquire);
            return -(rate.accrued_in(DEBT) as i64);
        }
        if zero_at <= now { rate.accrued_in(now - zero_at) as i64 } else { -(rate.accrued_in(zero_at - now) as i64) }
    }

    /// The rate has changed: what is owed takes longer or shorter to pay off by as much. One of those who see it does it. Gives where
    /// the balance is zero now.
    #[cold]
    fn follow(&self, now: u64, rate: Rate) -> u64 {
        let was = self.percent.load(Relaxed);
        let ours = was != rate.percent() && self.percent.compare_exchange(was, rate.percent(), AcqRel, Relaxed).is_ok();
        let zero_at = self.zero_at.load(Acquire);
        let (Some(was), true) = (Rate::new(was), ours && zero_at > now) else { return zero_at };
        let before = (zero_at - now).min(DEBT);
        let after = rate.time_for(was.accrued_in(before)).min(DEBT);
        // Charges of others meanwhile stay.
        if after > before {
            self.zero_at.fetch_add(after - before, AcqRel);
        } else {
            self.zero_at.fetch_sub(before - after, AcqRel);
        }
        self.zero_at.load(Acquire)
    }

    /// Takes GPU time that was used, or gives back (negative) what was charged too early. Nanoseconds. `rate` is what is in force where
    /// nobody has looked at the balance yet.
    pub fn charge(&self, gpu: i64, rate: Rate) {
        self.charge_as(gpu, gpu, rate);
    }

    /// The same where that time counts for `worth` nanoseconds, taken or given back alike.
    pub fn charge_as(&self, gpu: i64, worth: i64, rate: Rate) {
        let rate = Rate::new(self.percent.load(Relaxed)).unwrap_or(rate);
        let (amount, wall) = (gpu.unsigned_abs(), rate.time_for(worth.unsigned_abs()).min(DEBT));
        if gpu >= 0 {
            self.used.fetch_add(amount, Relaxed);
            self.zero_at.fetch_add(wall, AcqRel);
        } else {
            self.used.fetch_sub(amount, Relaxed);
            self.zero_at.fetch_sub(wall, AcqRel);
        }
    }

    /// Takes or prolongs the container's own turn for the process `who` (not 0) until `until`, in microseconds of the monotonic
    /// clock. Processes of one container run one after the other, for a GPU that slices its time between them loses a tenth.
    /// False while another process has it. A turn ends by itself, so nobody waits for the dead.
    pub fn hold(&self, who: u16, now: u64, until: u64) -> bool {
        let mine = turn(who, until);
        let mut seen = self.holder.load(Acquire);
        loop {
            let (holder, end) = ((seen >> 48) as u16, seen & TURN_MASK);
            // An end further off than any turn is garbage, or from before the clock was set back by a restore.
            if holder != 0 && holder != who && end > now && end < now.saturating_add(LONGEST_TURN) {
                self.ask(who, now);
                return false;
            }
            match self.holder.compare_exchange_weak(seen, mine, AcqRel, Acquire) {
                Ok(_) => {
                    // It is no contender any more.
                    let contender = self.contender.load(Relaxed);
                    if (contender >> 48) as u16 == who {
                        _ = self.contender.compare_exchange(contender, 0, Relaxed, Relaxed);
                    }
                    return true;
                }
                Err(other) => seen = other,
            }
        }
    }

    /// Ends the turn of `who` at `now`, in microseconds. False if it is not its any more.
    pub fn let_go(&self, who: u16, now: u64) -> bool {
        let seen = self.holder.load(Acquire);
        let ended = (seen >> 48) as u16 == who && self.holder.compare_exchange(seen, turn(who, now), AcqRel, Acquire).is_ok();
        if ended {
            self.handed.fetch_add(1, AcqRel);
        }
        ended
    }

    /// Notes that `who` waits and is to go first when the GPU is free. Whoever asked before it still does.
    pub fn ask(&self, who: u16, now: u64) {
        let seen = self.contender.load(Relaxed);
        if !is_of_another(seen, who, now, FIRST_REFUSED) {
            _ = self.contender.compare_exchange(seen, turn(who, now), Relaxed, Relaxed);
        }
    }

    /// Whether another process of the container had the GPU or waited for it lately. `now` in microseconds.
    pub fn is_shared(&self, who: u16, now: u64) -> bool {
        [&self.holder, &self.contender].iter().any(|word| is_of_another(word.load(Relaxed), who, now, LATELY))
    }

    /// Whether another process than `who` was refused and has not had its turn since: it goes first, unless that was so long ago that
    /// it has probably given up. `now` in microseconds.
    pub fn is_contended(&self, who: u16, now: u64) -> bool {
        is_of_another(self.contender.load(Relaxed), who, now, FIRST_REFUSED)
    }
}

/// For how long who was refused goes first, in microseconds.
pub(crate) const FIRST_REFUSED: u64 = 50_000;
/// For how long a process counts as one that shares the GPU with the others of its container, in microseconds: with kernels of 100 ms at
/// a few percent, each has a turn every few seconds.
pub const LATELY: u64 = 3_000_000;
const TURN_MASK: u64 = (1 << 48) - 1;
pub(crate) const LONGEST_TURN: u64 = 1_000_000;

/// A process and a time of its in microseconds, in one word.
const fn turn(who: u16, at: u64) -> u64 {
    (who as u64) << 48 | at & TURN_MASK
}

/// Whether the word is another process's, and its time not longer ago than so many microseconds. A time to come counts if no turn is longer.
fn is_of_another(word: u64, who: u16, now: u64, window: u64) -> bool {
    let (owner, at) = ((word >> 48) as u16, word & TURN_MASK);
    owner != 0 && owner != who && at < now.saturating_add(LONGEST_TURN) && now.saturating_sub(at) < window
}
