//! Turns of containers on a GPU, and orders about their memory, given by the arbiter.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// When the container may use one GPU, so that tenants take turns. All zero: at any time.
///
/// The arbiter writes it. The container's processes read it, and wait on [`Turn::word`] or
/// [`LimitsPage::turn_changes`](super::LimitsPage::turn_changes) as a futex. When [`Turn::beat`] stands still, the arbiter has stopped and the
/// turn is void.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Turn {
    pub(super) uuid: [AtomicU64; 2],
    /// Number that changes with every turn, times 4, plus one of [`Turn::FREE`], [`Turn::CLOSED`] and [`Turn::OPEN`].
    pub word: AtomicU32,
    /// Length of the turn in microseconds, from the time at which the processes see it.
    pub length: AtomicU32,
    /// The arbiter's heartbeat: incremented with each look at all tenants, at least ten times a second.
    pub beat: AtomicU32,
    /// Share lent to the container, in percent; applies while it is more than the limit.
    pub lent: AtomicU32,
    /// GPU time that the container lost to others' slices while it had work, in microseconds; wraps around. Not counted: what it loses to
    /// turns, and to a busy container's short slices.
    pub lost_us: AtomicU32,
    /// Time slice of the container's channel groups, in microseconds; 0 is the driver's own.
    pub slice_us: AtomicU32,
    /// Number of the last order to move memory to the host, for evictable containers; 0 is none. Zero also takes an order back that the
    /// processes have not begun to follow.
    pub leave: AtomicU32,
    /// Last request for room ([`GpuAccount::room_wanted`](crate::region::GpuAccount::room_wanted)) that was refused: nobody can leave.
    pub no_room: AtomicU32,
    /// What evictable containers do before they are told to leave: 0, [`MAKE_HOST_MEMORY`](Self::MAKE_HOST_MEMORY) or
    /// [`COPY_AHEAD`](Self::COPY_AHEAD).
    pub stand_by: AtomicU32,
    /// Not 0 while another container is leaving for this one, which may keep what room it finds meanwhile.
    pub served: AtomicU32,
    reserved: [u32; 2],
}

impl Turn {
    /// State without turns.
    pub const FREE: u32 = 0;
    /// State during another tenant's turn.
    pub const CLOSED: u32 = 1;
    /// State during this container's turn.
    pub const OPEN: u32 = 2;

    /// While another container waits for room: those that have some make host memory, although they are busy.
    pub const MAKE_HOST_MEMORY: u32 = 1;
    /// While another container is out, and none waits for room: idle ones copy their memory to the host, too, as they will be told to leave.
    pub const COPY_AHEAD: u32 = 2;

    /// Returns the state in a word: one of the three.
    #[must_use]
    pub const fn state(word: u32) -> u32 {
        word & 3
    }
}
