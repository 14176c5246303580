//! Tuned constants that more than one part of the limiter uses. Constants of one file are in that file.

/// A pause in a stream that is shorter than this counts as used, in nanoseconds. No other process can use the GPU in such a pause:
/// handing it over and back takes twice 100 µs, and waking both processes takes as long again. A program that keeps the GPU waiting
/// for short moments therefore gets its share of what it would get done alone.
pub const MIN_PAUSE_NS: u64 = 500_000;

/// Most work in flight during a turn, in nanoseconds. Bounds how long the next container waits for this one to drain.
pub const MAX_IN_FLIGHT_IN_TURN_NS: u64 = 4_000_000;

/// Budget that a host-bound stream may overdraw, in nanoseconds. It pays by a longer nap: the host loses less by few long naps than by
/// many short ones (hosts of H200s: a training step takes 0.2 ms longer after a nap of 2 ms, 0.5 ms after 10 ms, 1.3 ms after 30 ms).
pub const HOST_BOUND_CREDIT_NS: i64 = 16_000_000;
