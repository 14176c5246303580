//! Constants of the arbiter's policy, each with the measurement or the reason behind it. Times are µs.

/// Length of a round, in which each tenant that is always busy has one turn. Handing the GPU over costs .3 to .5 ms (H100,
/// `tests/gpu/results/hardware-scheduler.md`): two tenants lose under a hundredth.
pub const ROUND_US: u64 = 100_000;
/// Shortest turn: with many tenants handing over costs a twentieth.
pub const MIN_TURN_US: u64 = 10_000;
/// Time by which the next tenant's channels are switched on before the last one's are switched off. Switching on takes .4 ms; without the
/// overlap the GPU idles for as long (H100: a sum of .979 instead of .983).
pub const OVERLAP_US: u64 = 400;
/// Slice of a busy tenant while another works now and then (H100: median 1.2 times as long as alone, with slices of 300 µs 1.3 times).
pub const SHORT_SLICE_US: u32 = 100;
/// Slice of busy tenants while another one, which does not react, is on the GPU outside its turns. With the driver's slice of 2 ms that one
/// gets a tenth of the GPU (computed).
pub const LONG_SLICE_US: u32 = 20_000;

/// Period of the samples that tell tenants that are always busy from those that work now and then.
pub const SAMPLE_US: u64 = 10_000;
/// Averaging time of these samples. Not ablated.
pub const AVERAGING_US: f64 = 500_000.0;
/// Samples without work that a new tenant begins with: one that is busy from its first moment on counts as busy after .3 s.
pub const IDLE_SAMPLES_AT_FIRST: u32 = 10;
/// Parts of its share that a tenant may use, and of the time for which it may have work, to count as one that works now and then; and those
/// from which it counts as busy. The distance between the two prevents frequent changes. Not ablated.
pub const INTERACTIVE_USE: f64 = 0.6;
/// See [`INTERACTIVE_USE`].
pub const INTERACTIVE_DEMAND: f64 = 0.5;
/// See [`INTERACTIVE_USE`].
pub const BUSY_USE: f64 = 0.8;
/// See [`INTERACTIVE_USE`].
pub const BUSY_DEMAND: f64 = 0.75;
/// Time since a tenant that works now and then was last at work, up to which busy ones keep short slices.
pub const INTERACTIVE_WINDOW_US: u64 = 10_000_000;

/// Time since a tenant was last at work, up to which the GPU is not idle beside another that may be lent its time.
pub const ACTIVE_WINDOW_US: u64 = 50_000;
/// Time without a launch after the expected end of a tenant's work, after which the tenant is idle.
pub const IDLE_AFTER_US: u64 = 1_000;
/// Time from the begin of a turn, after which a tenant without a launch has nothing to launch.
pub const START_GRACE_US: u64 = 3_000;
/// Longest wait for a tenant to leave the GPU, or to come to it. After that the others get turns, and the GPU's scheduler shares it between
/// them and what is left of that tenant's work.
pub const DRAIN_TIMEOUT_US: u64 = 50_000;
/// Sum of the busy tenants' limits, in percent, from which turns divide the whole GPU.
pub const DIVIDED_FROM: u32 = 90;
/// Part of its limit, as a divisor, that a tenant may use beyond it while turns divide the whole GPU, and at least a percentage point: the
/// turns' lengths are exact, and a budget that is off by a hundredth would cut them short.
pub const LENT_DIVISOR: u32 = 10;

// Memory beyond the card: policy and bounds, none of them ablated.

/// Time between two looks at the tenants of a GPU whose memory is overcommitted, while somebody asks for room. A request is repeated twice
/// as often.
pub const BUSY_TICK_US: u64 = 20_000;
/// The same while nobody does. A hostile tenant makes each look as expensive as one at 1,024 processes.
pub const QUIET_TICK_US: u64 = 100_000;
/// Time without a call after which a tenant is idle and leaves first when others need room.
pub const IDLE_US: u64 = 200_000;
/// Time after its last request for which a tenant counts as asking, and after which who was given room should have taken it.
pub const STILL_ASKS_US: u64 = 60_000;
/// Longest time that a tenant may take to leave: 80 GB at 50 GB/s, and its last kernel.
pub const LEAVE_TIMEOUT_US: u64 = 5_000_000;
/// Time for which a tenant that did not leave is not told again.
pub const SKIPPED_US: u64 = 10_000_000;
/// Shortest time that a busy tenant stays on the GPU after it came back.
pub const MIN_QUANTUM_US: u64 = 2_000_000;
/// Quantum of a busy tenant, in moves: out and in again cost two of sixty, a thirtieth.
pub const MOVES_PER_QUANTUM: u64 = 60;
