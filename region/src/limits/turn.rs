//! Turns on a GPU, as the arbiter gives them.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// The host's word on when the container may use one GPU, so that tenants take turns. All zero: whenever it likes.
///
/// The arbiter writes, the container's processes read and wait on [`Turn::word`] as a futex. When [`Turn::beat`] stands still the
/// arbiter is gone, and so is what it said.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Turn {
    pub(super) uuid: [AtomicU64; 2],
    /// A number that changes with every turn, times 4, plus one of [`Turn::FREE`], [`Turn::CLOSED`] and [`Turn::OPEN`].
    pub word: AtomicU32,
    /// How long the turn is, in microseconds, from when the processes see it.
    pub length: AtomicU32,
    /// Counts while the arbiter lives, at least ten times a second.
    pub beat: AtomicU32,
    /// The share lent for now, in percent, where it is more than the limit.
    pub lent: AtomicU32,
    /// Not 0 while another tenant has work on the GPU outside its turns.
    pub crowded: AtomicU32,
    padding: u32,
    reserved: [u64; 3],
}

impl Turn {
    /// No turns are taken.
    pub const FREE: u32 = 0;
    /// It is another tenant's turn.
    pub const CLOSED: u32 = 1;
    /// It is this container's turn.
    pub const OPEN: u32 = 2;

    /// Which of the three a word says.
    #[must_use]
    pub const fn state(word: u32) -> u32 {
        word & 3
    }
}
