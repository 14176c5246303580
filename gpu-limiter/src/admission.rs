//! Where a launch waits until it may be made: for the container's budget, for its turn, for the processes beside it.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::account::Verdict;
use crate::batch_close::end_batches;
use crate::engine::{Engine, Waited};
use crate::launch::Launch;

use crate::stream::RING;

use crate::turns::AHEAD;

/// Who had to wait goes on when there is so much budget, in nanoseconds: each burst costs two naps, and its ends are known to a few
/// microseconds only, so it must not be too short; nor so long that a tenth of a second shows it.
const BURST: i64 = 2_000_000;
/// And so much more for each percent of the limit where no other process was seen lately: a burst costs the host some 75 µs (H200's, with kernels
/// of 200 µs).
const BURST_RISE: i64 = 20_000;
/// The same for launches that the host makes hardly faster than the GPU runs them.
const BURST_OF_SHORT: i64 = 3_000_000;
const SHORT_LAUNCH: u64 = 50_000;
/// The same for streams side by side: at a burst's begin and end not all of them are at work, and the time counts all the same. So much, and so
/// much more for each percent of the limit; but from 50 on less, or a tenth of a second would hold a pause more, or less, than the one before.
const BURST_OF_MANY: i64 = 2_400_000;
const BURST_OF_MANY_RISE: i64 = 44_000;
const BURST_OF_MANY_MOST: i64 = 5_200_000;
const BURST_OF_MANY_FALL: i64 = 12_000;
/// The same for launches each of which makes a burst.
const BURST_OF_LONG: i64 = 500_000;
const LONG_LAUNCH: u64 = 1_000_000;
/// But where two of them accrue in so many nanoseconds, two or three of up to 2.5 ms make one: a tenth of a second does not show it.
const PERIOD_OF_FEW: i64 = 10_000_000;
const BURST_OF_FEW: i64 = BURST_OF_LONG + 2_000_000;
/// The same for a host that does not keep up with the GPU: it takes a millisecond or two until it is as quick as before its nap.
const BURST_OF_SLOW: i64 = 8_000_000;
/// A host that keeps the GPU waiting most of the time may go on for so many nanoseconds beyond its budget, and pays for that in a longer nap:
/// it loses less by few long naps than by many short ones (H200's hosts: a training step takes 0.2 ms longer after 2 ms, 0.5 after 10 and 1.3
/// after 30).
pub const CREDIT_OF_SLOW: i64 = 16_000_000;
/// But there is a burst in each of so many nanoseconds.
const PERIOD_OF_SLOW: i64 = 100_000_000;
/// Shortest and longest waits before looking again, in nanoseconds. A wait costs about 6 µs of CPU time. A limit that is changed ends
/// them, except those for a turn.
const SHORT: u64 = 500_000;
const LONG: u64 = 6_000_000;
/// The longest where nobody else waits, no arbiter could give turns, and nothing is in flight that could turn out to be cheaper: a host that is
/// woken in between is slower afterwards (H200's hosts: by a twentieth all through the burst when it is woken every half millisecond).
const LONGEST: u64 = 25_000_000;
/// The shortest wait for the last launches of a turn.
const DRAIN: u64 = 60_000;
/// They count as finished so many nanoseconds before they should be: a nap is late by as much, and the next container needs longer than
/// that to begin.
const HANDOVER: u64 = 50_000;
/// With more than so many nanoseconds in flight, it is looked at in between: it may take less time than expected.
const FAR: u64 = 5_000_000;
/// How long to wait for another process of the container.
const OTHER: u64 = 300_000;
/// First wait for a launch of unknown cost to be measured; each further one is twice as long.
const PEEK: u64 = 20_000;
/// What is in flight may wait for this very launch (kernels that wait for each other, or for the host), and would then never end.
/// After so many nanoseconds in which nothing at all has finished, one launch goes ahead on credit: soon into a stream with nothing
/// in flight, late into one where it would queue behind what does not end.
const STUCK: u64 = 250_000_000;
const STUCK_BEHIND: u64 = 10_000_000_000;
impl Launch<'_> {
    /// Waits until the budget allows the launch. Whether it had to.
    pub fn wait(&mut self, engine: &impl Engine) -> bool {
        let began = self.began;
        let account = self.meter.account;
        let (mut least, mut peek, mut waited, mut closed) = (-self.credit(), PEEK, false, false);
        let mut moved = (self.meter.harvested.load(Relaxed), began);
        loop {
            self.meter.harvest(engine, self.rate);
            // The last one of its kind may have been measured just now.
            if !self.known
                && let Some(cost) = account.costs.of(self.kind)
            {
                (self.known, self.cost) = (true, u64::from(cost));
            }
            let now = engine.now();
            self.began = now;
            // Before the limit is read: a change in between ends the nap at once.
            let (page, told) = account.gate.page().told();
            // The limit may have been lifted meanwhile.
            let Some(rate) = account.rate() else { break };
            self.rate = rate;
            let handed = account.budget.handed.load(Acquire);
            let in_flight = account.in_flight.load(Acquire);
            let verdict = account.verdict(now, self.cost, least, rate);
            if account.has_handed() {
                engine.wake(&account.budget.handed);
            }
            let nap = match verdict {
                Verdict::Go | Verdict::Spare if !self.known && account.is_in_the_dark() => {
                    self.in_the_dark = true;
                    peek = (peek * 2).min(SHORT);
                    peek / 2
                }
                Verdict::Go | Verdict::Spare if self.stream.waiting() < RING - 2 => {
                    self.spare = verdict == Verdict::Spare && self.known;
                    break;
                }
                Verdict::Go | Verdict::Spare => SHORT,
                Verdict::Other => {
                    engine.wait_for_change(&account.budget.handed, handed, 3 * OTHER);
                    continue;
                }
                Verdict::Yield if in_flight != 0 => OTHER / 2,
                Verdict::Yield => OTHER,
                Verdict::Closed if !closed => {
                    end_batches(engine, self.meter);
                    closed = true;
                    continue;
                }
                Verdict::Closed => match self.until_drained(engine, now, in_flight) {
                    Some(nap) => nap,
                    None => continue,
                },
                // Another thread has gone on in its stream, and this can run beside that.
                Verdict::Wait(_) if waited && self.stream.waiting() < RING - 2 && self.is_covered(now) => break,
                // What is in flight may turn out cheaper than expected; what is owed cannot.
                Verdict::Wait(time) => {
                    let is_first = !core::mem::replace(&mut waited, true);
                    account.waiting.fetch_add(u32::from(is_first), Relaxed);
                    least = self.burst(now);
                    if is_first {
                        end_batches(engine, self.meter);
                        continue;
                    }
                    account.worth.look(engine, account.budget, &account.gate, now);
                    let longest = match in_flight {
                        _ if account.is_beside_enough() => SHORT,
                        0 if account.waiting.load(Relaxed) == 1 && account.gate.turn().is_none() && !account.is_shared(now) => LONGEST,
                        0..=FAR => LONG,
                        _ => 2 * SHORT,
                    };
                    let nap = time.clamp(SHORT, longest);
                    match account.gate.turn() {
                        Some(turn) if account.gate.takes_turns() => {
                            engine.wait_for_change(&turn.word, account.gate.word(), nap.min(2 * SHORT));
                            0
                        }
                        _ => nap,
                    }
                }
            };
            let harvested = self.meter.harvested.load(Relaxed);
            if harvested != moved.0 || in_flight == 0 {
                moved = (harvested, now);
            } else if now.saturating_sub(moved.1) > if self.stream.waiting() == 0 { STUCK } else { STUCK_BEHIND } {
                self.on_credit = true;
                break;
            }
            if nap != 0 {
                engine.sleep_unless(page, told, nap);
            }
        }
        if waited {
            account.waiting.fetch_sub(1, Relaxed);
            account.rounds.begin(self.began);
            account.budget.waited.fetch_add(self.began.saturating_sub(began), Relaxed);
        }
        if waited || closed {
            let (stream, percent) = (self.handle as u64, self.rate.percent());
            engine.waited(&Waited { for_budget: waited, for_turn: closed, stream, began, ended: self.began, cost: self.cost, percent });
        }
        waited || closed
    }

    /// How far beyond its budget it may go on.
    fn credit(&self) -> i64 {
        let account = self.meter.account;
        if account.is_shared(self.began) {
            0
        } else if account.gate.takes_turns() {
            // What is launched ahead is paid for by what accrues until the turn is over.
            AHEAD as i64
        } else if self.behind {
            (PERIOD_OF_SLOW / 100 * i64::from(self.rate.percent()) - BURST_OF_SLOW).clamp(0, CREDIT_OF_SLOW)
        } else {
            0
        }
    }

    /// How much budget there must be before it goes on.
    fn burst(&self, now: u64) -> i64 {
        let (account, percent) = (self.meter.account, i64::from(self.rate.percent()));
        if account.gate.takes_turns() {
            BURST_OF_LONG
        } else if account.is_shared(now) {
            // The same for all processes: who waited for more than others do would never have it.
            BURST
        } else if self.meter.has_many_streams() {
            (BURST_OF_MANY + BURST_OF_MANY_RISE * percent).min(BURST_OF_MANY_MOST - BURST_OF_MANY_FALL * percent)
        } else if account.waiting.load(Relaxed) > 1 {
            // And for all threads.
            BURST
        } else if self.slow {
            BURST_OF_SLOW
        } else if self.cost < SHORT_LAUNCH {
            BURST_OF_SHORT
        } else if self.cost < LONG_LAUNCH {
            if account.was_shared(now) { BURST } else { (BURST + BURST_RISE * percent).min(BURST_OF_SHORT) }
        } else if 2 * (self.cost as i64) < PERIOD_OF_FEW / 100 * percent && !account.was_shared(now) {
            BURST_OF_FEW
        } else {
            BURST_OF_LONG
        }
    }

    /// The turn is over, or full: how long to sleep until it makes sense to look again. `None` if that is done.
    fn until_drained(&self, engine: &impl Engine, now: u64, in_flight: u64) -> Option<u64> {
        let account = self.meter.account;
        let turn = account.gate.turn()?;
        let (word, is_over) = (account.gate.word(), account.gate.is_over());
        let left = in_flight.saturating_sub(now.saturating_sub(self.meter.mark.load(Relaxed)));
        if is_over && left > HANDOVER {
            // What finished last was seen late by up to a nap, so it may well be less.
            return Some(left.saturating_sub(2 * SHORT).clamp(DRAIN, 2 * SHORT));
        }
        if is_over {
            account.budget.drained.store(u64::from(word), Relaxed);
        }
        // What is in flight fills the turn; when that is over, it is told at once.
        let most = match in_flight {
            0 => LONG,
            _ if is_over => SHORT,
            _ => (in_flight / 4).clamp(2 * DRAIN, 2 * SHORT),
        };
        engine.wait_for_change(&turn.word, word, most);
        None
    }
}
