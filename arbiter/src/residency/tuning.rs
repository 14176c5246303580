//! Constants of the policy of memory beyond the card, each with the reason behind it: policy and bounds, none of them ablated. Times are µs.

/// Time between two looks at the tenants of a GPU whose memory is overcommitted while somebody asks for room, and between two looks whether
/// somebody does. A request is repeated twice as often.
pub const BUSY_TICK_US: u64 = 20_000;
/// Time between two looks at all tenants while none asks for room. A look reads every process's slot: up to 1,024 of a hostile tenant.
pub const QUIET_TICK_US: u64 = 100_000;
/// Time without a call after which a tenant is idle and leaves first when others need room.
pub const IDLE_US: u64 = 200_000;
/// Time after its last request for which a tenant counts as asking, and after which who was given room should have taken it.
pub const STILL_ASKS_US: u64 = 60_000;
/// Longest time that a tenant may take to leave: 80 GB at 50 GB/s, and its last kernel.
pub const LEAVE_TIMEOUT_US: u64 = 5_000_000;
/// Time for which a request is not refused while another tenant may be on its way back to the GPU, as that one can leave when it is there:
/// 80 GB at 40 GB/s.
pub const COME_BACK_US: u64 = 2_000_000;
/// Time for which a tenant that did not leave is not told again.
pub const SKIPPED_US: u64 = 10_000_000;
/// Shortest time that a busy tenant stays on the GPU after it came back.
pub const MIN_QUANTUM_US: u64 = 2_000_000;
/// Quantum of a busy tenant, in moves: out and in again cost two of sixty, a thirtieth.
pub const MOVES_PER_QUANTUM: u64 = 60;
