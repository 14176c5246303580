//! Burst lengths: how much budget a launch that had to wait needs before it is made, and how far a launch may overdraw it.

use core::sync::atomic::Ordering::Relaxed;

use crate::launch::Launch;
use crate::tuning::{HOST_BOUND_CREDIT_NS, MAX_IN_FLIGHT_IN_TURN_NS};

/// Burst length, in nanoseconds. Each burst costs two naps, and its ends are known to a few microseconds only, so it must not be too short;
/// nor so long that 100 ms windows show it.
const BURST_NS: i64 = 2_000_000;
/// Added for each percent of the limit while no other process was seen lately, in nanoseconds: a burst costs the host about 75 µs (host of an
/// H200, kernels of 200 µs).
const BURST_PER_PERCENT_NS: i64 = 20_000;
/// Burst length of launches that the host makes hardly faster than the GPU runs them, in nanoseconds.
const SHORT_LAUNCH_BURST_NS: i64 = 3_000_000;
/// Cost below which a launch is such a short one, in nanoseconds.
const SHORT_LAUNCH_NS: u64 = 50_000;
/// Burst length of concurrent streams, in nanoseconds: not all of them run at a burst's begin and end, and that time is charged in full. It
/// grows with each percent of the limit. From 50% on it shrinks, or 100 ms windows would hold one pause more, or less, than the one before.
const CONCURRENT_BURST_NS: i64 = 2_400_000;
const CONCURRENT_BURST_PER_PERCENT_NS: i64 = 44_000;
const CONCURRENT_BURST_MAX_NS: i64 = 5_200_000;
const CONCURRENT_BURST_FALL_PER_PERCENT_NS: i64 = 12_000;
/// Burst length of launches each of which is a burst, in nanoseconds.
const LONG_LAUNCH_BURST_NS: i64 = 500_000;
/// Cost from which a launch is such a long one, in nanoseconds.
const LONG_LAUNCH_NS: u64 = 1_000_000;
/// If the budget for two long launches accrues in this time, two or three launches of up to 2.5 ms make one burst, in nanoseconds. Not visible
/// in 100 ms windows.
const FEW_LAUNCHES_PERIOD_NS: i64 = 10_000_000;
const FEW_LAUNCHES_BURST_NS: i64 = LONG_LAUNCH_BURST_NS + 2_000_000;
/// Burst length for a host that does not keep up with the GPU, in nanoseconds: it takes one or two milliseconds until it is as fast as before
/// its nap.
const LAGGING_HOST_BURST_NS: i64 = 8_000_000;
/// Budget that may be overdrawn, for each percent of the limit, in turns that end by switching channels off, in nanoseconds: what accrues in a
/// round of turns. A turn ends in the middle of a kernel, so work launched ahead delays no other tenant, and the GPU does not idle between
/// two long kernels.
const SWITCHED_CREDIT_PER_PERCENT_NS: i64 = 1_000_000;
/// Longest time from one burst of a host-bound stream to the next, in nanoseconds. Bounds its credit.
const HOST_BOUND_PERIOD_NS: i64 = 100_000_000;

impl Launch<'_> {
    /// Returns by how much the launch may overdraw the budget, in nanoseconds.
    pub fn credit_ns(&self) -> i64 {
        let account = self.meter.account;
        if account.is_shared(self.now) {
            0
        } else if account.turns.is_switched() && account.turns.are_taken() {
            SWITCHED_CREDIT_PER_PERCENT_NS * i64::from(self.rate.percent())
        } else if account.turns.are_taken() {
            // The budget that accrues until the turn is over pays for work that is launched ahead.
            MAX_IN_FLIGHT_IN_TURN_NS as i64
        } else if self.is_host_bound {
            let per_period_ns = HOST_BOUND_PERIOD_NS / 100 * i64::from(self.rate.percent());
            (per_period_ns - LAGGING_HOST_BURST_NS).clamp(0, HOST_BOUND_CREDIT_NS)
        } else {
            0
        }
    }

    /// Returns the balance that a launch needs that had to wait, in nanoseconds.
    pub fn burst_ns(&self, now: u64) -> i64 {
        let (account, percent) = (self.meter.account, i64::from(self.rate.percent()));
        if account.turns.is_switched() && account.turns.are_taken() {
            -self.credit_ns()
        } else if account.turns.are_taken() {
            LONG_LAUNCH_BURST_NS
        } else if account.is_shared(now) {
            // The same for all processes: one that waits for more than the others would never get it.
            BURST_NS
        } else if self.meter.has_concurrent_streams() {
            let rising_ns = CONCURRENT_BURST_NS + CONCURRENT_BURST_PER_PERCENT_NS * percent;
            rising_ns.min(CONCURRENT_BURST_MAX_NS - CONCURRENT_BURST_FALL_PER_PERCENT_NS * percent)
        } else if account.waiting_threads.load(Relaxed) > 1 {
            // The same for all threads.
            BURST_NS
        } else if self.is_lagging {
            LAGGING_HOST_BURST_NS
        } else if self.cost_ns < SHORT_LAUNCH_NS {
            SHORT_LAUNCH_BURST_NS
        } else if self.cost_ns < LONG_LAUNCH_NS {
            if account.was_shared(now) { BURST_NS } else { (BURST_NS + BURST_PER_PERCENT_NS * percent).min(SHORT_LAUNCH_BURST_NS) }
        } else if 2 * (self.cost_ns as i64) < FEW_LAUNCHES_PERIOD_NS / 100 * percent && !account.was_shared(now) {
            FEW_LAUNCHES_BURST_NS
        } else {
            LONG_LAUNCH_BURST_NS
        }
    }
}
