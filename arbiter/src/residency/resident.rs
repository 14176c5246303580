//! One container on a GPU whose memory is overcommitted, and the order that it was given. Times are µs.

use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_region::limits::{GpuLimit, LimitsPage, Turn};

use super::orders;
use super::report::{Report, Source};
use crate::residency::tuning::{COME_BACK_US, IDLE_US, LEAVE_TIMEOUT_US, MIN_QUANTUM_US, MOVES_PER_QUANTUM, SKIPPED_US, STILL_ASKS_US};

/// Pages that move in a millisecond, at least: 4 GB/s. What a tenant takes longer was spent on host memory, and is no part of its quantum.
const PAGES_PER_MS: u64 = 1000;
/// Time that a move takes besides, at most: the last kernel, and many small blocks.
const OTHER_US: u64 = 500_000;
/// Time that a tenant may take besides for each page that it has: its first move waits for host memory (H100: 16 GiB in 3.1 s).
const US_PER_PAGE: u64 = 1;

/// An order that stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    number: u32,
    since_us: u64,
    /// The tenant that has asked.
    pub(super) asking: &'static Turn,
    /// Pages on the host, and pages on the GPU that may move, when it was given.
    before: (u64, u64),
    /// Whether it was followed: the tenant is held out.
    pub(super) is_followed: bool,
}

impl Order {
    /// Returns true while memory leaves by this order: the tenant was not out anyway.
    pub(super) fn makes_room(self) -> bool {
        !self.is_followed && self.before.1 != 0
    }
}

/// A container on a GPU whose memory is overcommitted.
#[derive(Debug)]
pub struct Resident {
    pub(super) page: &'static LimitsPage,
    limit: &'static GpuLimit,
    /// Where orders are published.
    pub turn: &'static Turn,
    source: Source,
    pub(super) report: Report,
    pub(super) order: Option<Order>,
    /// Time of its last call.
    pub(super) active_us: u64,
    /// Time at which a call of it last waited for its memory.
    called_us: u64,
    /// Time of its last request.
    pub(super) asked_us: u64,
    /// Time at which its place in the queue was last kept for it, though it did not ask.
    kept_us: u64,
    /// Pages on the GPU that may move when it began to ask; `None` if it does not ask.
    pub(super) asks: Option<u64>,
    /// Time since which it waits to be served.
    pub(super) queued_us: u64,
    /// Time of the first of its requests in a row for which no tenant could leave; `None` if one could.
    pub(super) nobody_since_us: Option<u64>,
    /// Time since which its memory is on the GPU.
    in_since_us: u64,
    /// How long its last move took.
    move_us: u64,
    /// Time until which it is not told to leave.
    skipped_until_us: u64,
}

impl Resident {
    /// Returns a tenant, and takes back what an arbiter before this one has ordered. `limit` and `turn` are parts of the page.
    #[must_use]
    pub fn new(page: &'static LimitsPage, limit: &'static GpuLimit, turn: &'static Turn, source: Source) -> Self {
        let report = source.read();
        turn.stand_by.store(0, Relaxed);
        turn.served.store(0, Relaxed);
        let resident = Self {
            page,
            limit,
            turn,
            source,
            report,
            order: None,
            active_us: 0,
            called_us: 0,
            asked_us: 0,
            kept_us: 0,
            asks: None,
            queued_us: 0,
            nobody_since_us: None,
            in_since_us: 0,
            move_us: 0,
            skipped_until_us: 0,
        };
        resident.publish(0);
        resident
    }

    /// Reads its report.
    pub(super) fn update(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.report, self.source.read());
        // When memory moves, the process's calls go from one sum to the other.
        if self.report.out == before.out && self.report.calls != before.calls {
            self.active_us = now;
        }
        if self.report.out == before.out && self.report.waiting_calls != before.waiting_calls {
            self.called_us = now;
        }
        if before.out != 0 && self.report.out == 0 || before.resident == 0 && self.report.resident != 0 {
            self.in_since_us = now;
        }
        if self.report.room_wanted != before.room_wanted {
            if self.asks.is_none() {
                (self.asks, self.queued_us) = (Some(before.resident), now);
                // A call that takes long asks rarely, and is the same one.
                self.nobody_since_us = self.nobody_since_us.filter(|_| now.saturating_sub(self.asked_us) < COME_BACK_US);
            }
            self.asked_us = now;
        } else if self.order.is_some() || self.turn.served.load(Relaxed) != 0 {
            // It cannot ask while it is held out, nor while it copies what has found room, and keeps its place in the queue.
            self.kept_us = now;
        } else if !self.keeps_place(now)
            && let Some(had) = self.asks.take()
            && had * 2 < self.report.resident
        {
            // The quantum of a newcomer begins when it has its memory.
            self.in_since_us = now;
        }
    }

    /// Returns true if it has asked for room since the last report.
    pub(super) fn asks_anew(&self) -> bool {
        self.source.room_wanted() != self.report.room_wanted
    }

    /// Returns true if it can be told to leave at all, or to wait.
    pub(super) fn can_leave(&self, now: u64) -> bool {
        let is_evictable = self.limit.overcommit.load(Relaxed) == GpuLimit::EVICTABLE;
        is_evictable && (self.report.resident != 0 || self.waits_outside(now)) && self.order.is_none() && now >= self.skipped_until_us
    }

    /// Returns true if all of its memory is on the host, or on its way back.
    fn is_out(&self) -> bool {
        self.report.resident == 0 && self.report.out != 0
    }

    /// Returns true if all of its memory is on the host and it asks for room. It may map a part of its memory meanwhile, and unmap it again.
    pub(super) fn waits_outside(&self, now: u64) -> bool {
        self.is_out() && self.is_waiting(now)
    }

    /// Returns true if it has a place in the queue, and is not held.
    pub(super) fn is_in_queue(&self) -> bool {
        self.asks.is_some() && self.order.is_none()
    }

    /// Returns true if its request counts as one that goes on. One that is still out copies what has found room.
    fn keeps_place(&self, now: u64) -> bool {
        let for_us = if self.is_out() { COME_BACK_US } else { STILL_ASKS_US };
        now.saturating_sub(self.asked_us.max(self.kept_us)) < for_us
    }

    /// Returns true if it asked for room a moment ago, and so has not found enough.
    pub(super) fn is_waiting(&self, now: u64) -> bool {
        self.asks.is_some() && now.saturating_sub(self.asked_us) < STILL_ASKS_US
    }

    /// Returns true if it is out, not held there, and had a call lately: one that comes back says that it was called.
    pub(super) fn may_be_on_its_way(&self, now: u64) -> bool {
        self.is_out() && self.order.is_none() && now.saturating_sub(self.called_us) < COME_BACK_US
    }

    /// Returns true if it was late with its last order, or had nothing to give.
    pub(super) fn was_skipped(&self) -> bool {
        self.skipped_until_us != 0
    }

    /// Returns true if it is idle, or has been on the GPU for its quantum.
    pub(super) fn may_be_told(&self, now: u64) -> bool {
        let quantum = (MOVES_PER_QUANTUM * self.move_us).max(MIN_QUANTUM_US);
        self.is_idle(now) || now.saturating_sub(self.in_since_us) >= quantum
    }

    pub(super) fn is_idle(&self, now: u64) -> bool {
        now.saturating_sub(self.active_us.max(self.in_since_us)) >= IDLE_US
    }

    /// Returns true if it was told to leave, or is held out, for this tenant.
    pub(super) fn is_told_for(&self, asking: &Turn) -> bool {
        self.order.is_some_and(|order| std::ptr::eq(order.asking, asking))
    }

    /// Tells it to leave for another tenant, or for another of its own processes.
    pub(super) fn tell(&mut self, asking: &'static Turn, now: u64) {
        let number = orders::next();
        self.order = Some(Order { number, since_us: now, asking, before: (self.report.out, self.report.resident), is_followed: false });
        self.publish(number);
    }

    /// Takes its order back.
    pub(super) fn release(&mut self) {
        self.order = None;
        self.publish(0);
    }

    /// Looks at its order. Returns true if that was followed or is taken back now.
    pub(super) fn follow(&mut self, now: u64) -> bool {
        let Some(order) = self.order.filter(|order| !order.is_followed) else { return false };
        let took_us = now.saturating_sub(order.since_us);
        let (out, movable) = order.before;
        if movable == 0 && self.report.resident != 0 {
            // It came in before it saw that it should wait.
            self.release();
            return true;
        }
        if self.report.left.iter().all(|&left| orders::is_followed(order.number, left)) {
            self.order = Some(Order { is_followed: true, ..order });
            if movable == 0 {
                // It was out, and is held there.
                return true;
            }
            self.skipped_until_us = 0;
            self.move_us = took_us.min(OTHER_US + movable * 1000 / PAGES_PER_MS);
            if self.report.out <= out {
                // It has nothing that can move.
                self.skipped_until_us = now + SKIPPED_US;
            }
            // What made room for itself shall come back.
            if self.report.out <= out || std::ptr::eq(order.asking, self.turn) {
                self.release();
            }
            return true;
        }
        let is_late = took_us >= LEAVE_TIMEOUT_US + movable.saturating_mul(US_PER_PAGE);
        if is_late {
            self.skipped_until_us = now + SKIPPED_US;
            self.release();
        }
        is_late
    }

    pub(super) fn publish(&self, order: u32) {
        self.turn.leave.store(order, Release);
        self.page.notify_turn(self.turn);
    }
}
