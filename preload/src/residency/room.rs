//! Asks the arbiter for room on a device that is full, though the container's limit is not.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::os::clock;
use crate::session::{self, Gpu};

/// Time between two tries, in nanoseconds.
const RETRY_NS: i64 = 10_000_000;
/// Time after which an arbiter whose heart does not beat counts as gone, in nanoseconds.
const GONE_AFTER_NS: u64 = 1_000_000_000;

/// A call that waits for room.
#[derive(Debug)]
pub struct Request<'a> {
    /// The device that is full.
    gpu: &'a Gpu,
    /// The arbiter's last heartbeat, and when it was seen, in nanoseconds.
    beat: (u32, u64),
}

impl<'a> Request<'a> {
    /// Begins to ask for room on a device.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self { gpu, beat: (0, clock::monotonic()) }
    }

    /// Asks, and sleeps for a while. Returns false if there will be no room: the arbiter is gone, or found nobody who can leave. An arbiter
    /// that has not met this container yet is waited for.
    pub fn ask(&mut self) -> bool {
        let turn = session::ready().and_then(|session| session.limits.turn(self.gpu.uuid));
        let (beat, now) = (turn.map_or(0, |turn| turn.beat.load(Relaxed)), clock::monotonic());
        if beat != self.beat.0 {
            self.beat = (beat, now);
        } else if now.saturating_sub(self.beat.1) > GONE_AFTER_NS {
            return false;
        }
        let number = self.gpu.account.room_wanted.fetch_add(1, AcqRel).wrapping_add(1);
        clock::nap(RETRY_NS);
        // Numbers wrap around: the refused one is this one, or a later one.
        turn.is_none_or(|turn| (turn.no_room.load(Acquire).wrapping_sub(number) as i32) < 0)
    }
}
