//! Tuned constants of the limiter as a whole. A constant of one mechanism is in that mechanism's file.

/// A pause in a stream that is shorter than this counts as used, in nanoseconds. No other process can use the GPU in such a pause:
/// handing it over and back takes twice 100 µs, and waking both processes takes as long again. A program that keeps the GPU waiting
/// for short moments therefore gets its share of what it would get done alone.
pub const MIN_PAUSE_NS: u64 = 500_000;

/// Most work in flight during a turn, in nanoseconds. Bounds how long the next container waits for this one to drain.
pub const MAX_IN_FLIGHT_IN_TURN_NS: u64 = 4_000_000;

/// Time in which the budget for one burst accrues, in nanoseconds. Longer bursts cost the host less (75 µs each, host of an H200), shorter
/// ones are smoother.
pub const PERIOD_NS: u64 = 10_000_000;
/// Longest burst, in nanoseconds: with bursts of 9 ms, shares of 100 ms had a standard deviation of 2.6 points (H200).
pub const MAX_BURST_NS: i64 = 5_000_000;

/// Budget that may be overdrawn, for each percent of the limit, in turns that end by switching channels off, in nanoseconds: what accrues in a
/// round of turns. A turn ends in the middle of a kernel, so work launched ahead delays no other tenant, and the GPU does not idle between
/// two long kernels.
pub const SWITCHED_CREDIT_PER_PERCENT_NS: i64 = 1_000_000;
