//! The tuned constants of the limiter and the arbiter.
//!
//! "Simulated" is the mean absolute error of `sim::matrix` in points of share, .50 with these values on 2026-11-24. Figures of an H100 or
//! H200 are from `tests/gpu/results`. Other constants of the two crates are made from these, or are bounds: normal work does not meet them, or
//! half and twice of them change nothing in the simulation.

/// A pause in a stream that is shorter than this counts as used, in nanoseconds. No other process can use the GPU in such a pause:
/// handing it over and back takes twice 100 µs, and waking both processes takes as long again. A program that keeps the GPU waiting
/// for short moments therefore gets its share of what it would get done alone. Simulated .50 with half of it and with twice: it says what is
/// charged.
pub const MIN_PAUSE_NS: u64 = 500_000;

/// Expected GPU time at which a batch is closed, in nanoseconds. Long enough that its event does not matter, short enough that its measured
/// time is known soon. Simulated .74 with half of it, .48 with twice.
pub const BATCH_NS: u64 = 800_000;

/// Time in which the budget for one burst accrues, in nanoseconds. Longer bursts cost the host less (75 µs each, host of an H200), shorter
/// ones are smoother. Simulated .58 with 5 ms and twice as many sleeps; .54 with 20 ms.
pub const PERIOD_NS: u64 = 10_000_000;

/// Longest burst, in nanoseconds: with bursts of 9 ms, shares of 100 ms had a standard deviation of 2.6 points (H200). Simulated .53 with
/// 3 ms, .50 with 9 ms.
pub const MAX_BURST_NS: i64 = 5_000_000;

/// Most GPU time that can be saved up, in nanoseconds: how long a container that was idle may run at full speed.
pub const MAX_SAVED_NS: u64 = 2 * PERIOD_NS;

/// The same for a container that takes turns: besides, it keeps what accrues during the others' turns, which is most for two with half of the
/// GPU each.
pub const MAX_SAVED_IN_TURNS_NS: u64 = MAX_SAVED_NS + ROUND_US * 1_000 / 4;

/// GPU time of the event that ends a batch, in nanoseconds (H200, driver 580: 2.0 µs with kernels of 1 µs to 200 µs). Not charged. Simulated
/// .58 without, .53 with half of it.
pub const EVENT_NS: u64 = 2_000;

/// Part of a host-bound batch, as a divisor, that is the limiter's own time on the host. Not charged. An H200's host, with the limit switched
/// on and off in one process: 26 µs of 1.40 ms (MLP), 82 µs of 3.38 ms (training step). Simulated .59 without,
/// .55 with 30, .49 with 60.
pub const OWN_DIVISOR: u64 = 40;

/// Time that a host may lose in a burst until it launches as fast as before its nap, in nanoseconds. It is not charged, as the GPU had nothing
/// to do (hosts of H200s: .2 ms after a nap of 2 ms, .5 ms after one of 10 ms). Simulated .60 without, .51 with half of it, .55 with twice.
pub const WAKE_ALLOWANCE_NS: u64 = 200_000;

/// Shortest nap while the end of work in flight is awaited, in nanoseconds. While the first launch of a kind is measured, each further nap is
/// twice as long. A program with a new kind after every ten kernels of 5 µs gets 48% of 50; 51% with half of it, 43% with twice (simulated).
pub const FIRST_NAP_NS: u64 = 20_000;

/// Power draw at rest with the clock up, in thousandths of the default limit (H200: 124 W of 700 W).
pub const REST_PER_MILLE: u64 = 175;

/// Power grows with the speed to the power of 2.4 (three H200s and an H100, matmuls at 10 to 90%: 2.1 to 3). With these `(a, b, c)`,
/// `(a + bx) / (a + cx)` is within one percent of the root of `1 + x`.
pub const POWER_ROOT: (u64, u64, u64) = (24, 17, 7);

/// Length of a round, in which each tenant that is always busy has one turn, in µs. Handing the GPU over costs .3 to .5 ms (H100,
/// `tests/gpu/results/hardware-scheduler.md`): two tenants lose under a hundredth.
pub const ROUND_US: u64 = 100_000;

/// Shortest turn, in µs: with many tenants handing over costs a twentieth.
pub const MIN_TURN_US: u64 = PERIOD_NS / 1_000;

/// Time that it takes to switch a process's channels, in µs (H100 and H200: .3 to .6 ms; up to 100 ms while many processes make such calls).
/// The next tenant's channels are switched on by this much before the last one's are switched off: without, the GPU idles for as long (H100:
/// a sum of .979 instead of .983). And a call that takes longer has waited for others first: the GPU stops, or starts, in its last part.
pub const SWITCH_US: u64 = 400;

/// Slice of a busy tenant while another works now and then, in µs (H100: median 1.2 times as long as alone, with slices of 300 µs 1.3 times),
/// and of all groups that copy (H100: mapping memory beside another's copies to the host takes 75 µs, with the driver's slice of 1 ms 1,005;
/// these copies lose 1 to 6%, copies both ways 10%).
pub const SHORT_SLICE_US: u32 = 100;

/// Averaging time of the samples that tell tenants that are always busy from those that work now and then, in µs: five rounds. Half and twice
/// of it pass the scheduler's tests; not measured on a GPU.
pub const AVERAGING_US: f64 = 5.0 * ROUND_US as f64;

/// Part of its share that a tenant uses, and of the time for which it has work, from which it counts as busy. Up to two thirds of it a busy
/// tenant counts as one that works now and then again. Nine tenths, and no distance between the two, pass the scheduler's tests; not
/// measured on a GPU.
pub const BUSY_FROM: f64 = 0.75;
