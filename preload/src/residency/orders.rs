//! The arbiter's orders for this process.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use vgpu_region::limits::Turn;

use crate::residency::gate::Gate;
use crate::session::Session;
use vgpu_cuda_abi::cuda::Device;

/// Reads the arbiter's orders for this process, and acknowledges them. Orders of an arbiter that no longer runs are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// The process's gate.
    pub gate: &'static Gate,
    /// The process's session.
    pub session: &'static Session,
}

impl Orders {
    /// Returns true if the arbiter asks for `what` of [`Turn::stand_by`].
    pub fn stands_by(&self, what: u32) -> bool {
        self.turns().any(|turn| turn.stand_by.load(Relaxed) == what) && self.gate.arbiter_lives()
    }

    /// Returns the turns on the process's GPUs.
    fn turns(&self) -> impl Iterator<Item = &'static Turn> {
        self.session.gpus().iter().filter_map(|gpu| self.session.limits.turn(gpu.uuid))
    }

    /// Returns the turns on the process's GPUs with an order.
    fn all(&self) -> impl Iterator<Item = &'static Turn> {
        self.turns().filter(|turn| turn.leave.load(Acquire) != 0)
    }

    /// Returns true while an order stands, followed or not.
    pub fn is_ordered(&self) -> bool {
        self.all().next().is_some() && self.gate.arbiter_lives()
    }

    /// Returns the turn with an order that was not followed yet.
    pub fn pending(&self) -> Option<&'static Turn> {
        let left = self.session.membership.slot().left.load(Relaxed);
        let mut newer = self.all().filter(|turn| is_newer(turn.leave.load(Acquire), left));
        newer.next().filter(|_| self.gate.arbiter_lives())
    }

    /// Tells the arbiter that an order was followed. 0 stands for an order that was withdrawn meanwhile.
    pub fn say_left(&self, order: u32) {
        if order != 0 {
            self.session.membership.slot().left.store(order, Release);
        }
    }

    /// Returns true while others leave a device for this container: what has come back stays there, and the rest follows as they make room.
    /// At any other time two processes that hold a part each would wait for each other.
    pub fn is_served(&self, device: Device) -> bool {
        let turn = self.session.gpu(device).and_then(|gpu| self.session.limits.turn(gpu.uuid));
        turn.is_some_and(|turn| turn.served.load(Acquire) != 0) && self.gate.arbiter_lives()
    }
}

/// Returns whether an order came after the one that was last followed; 0 is none. Numbers wrap around.
fn is_newer(order: u32, left: u32) -> bool {
    left == 0 || (order.wrapping_sub(left) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_order_is_not_followed_again() {
        assert!(is_newer(0x9000_0000, 0) && is_newer(8, 7) && is_newer(1, u32::MAX));
        assert!(!is_newer(7, 7) && !is_newer(6, 7) && !is_newer(u32::MAX, 1));
    }
}
