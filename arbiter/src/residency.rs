//! Decides whose memory is on a GPU that has less than its tenants were promised. Times are µs.
//!
//! Nothing happens until a tenant finds the GPU full and asks for room. Then one evictable tenant after the other is told to leave, until
//! nobody asks any more:
//!
//! ```text
//!  idle for 200 ms ──► first, the longest idle of them
//!  busy ──► only after a quantum on the GPU, and never for a tenant of lower priority
//!  nobody left ──► the request is refused
//! ```
//!
//! The quantum is [`MOVES_PER_QUANTUM`] times what the tenant's last move took, so that two tenants that do not fit together lose a
//! twentieth to moving.
//!
//! A tenant says itself that it is at work, that it asks and that it has left. One that lies keeps others waiting for
//! [`LEAVE_TIMEOUT_US`], and is then not asked for [`SKIPPED_US`].

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_region::limits::{GpuLimit, LimitsPage, Turn};
use vgpu_region::region::{GpuAccount, Region, SLOTS, Slot};

use crate::tuning::{BUSY_TICK_US, IDLE_US, LEAVE_TIMEOUT_US, MIN_QUANTUM_US, MOVES_PER_QUANTUM, QUIET_TICK_US, SKIPPED_US, STILL_ASKS_US};

/// What a tenant says about its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of requests for room so far.
    pub room_wanted: u32,
    /// Sum of its processes' calls.
    pub calls: u32,
    /// Pages on the GPU that are not on the host.
    pub resident: u64,
    /// Pages on the host.
    pub out: u64,
    /// Last order that each process with memory has followed.
    pub left: Vec<u32>,
}

/// Source of a tenant's report.
#[derive(Debug)]
pub enum Source {
    /// Region file, and the GPU's index in it.
    File(File, usize),
    /// For tests.
    Memory(&'static std::sync::Mutex<Report>),
}

impl Source {
    /// Returns the report. A tenant whose region is unreadable has nothing to say.
    fn read(&self) -> Report {
        match self {
            Self::File(file, gpu) => read(file, *gpu).unwrap_or_default(),
            Self::Memory(report) => report.lock().map(|report| report.clone()).unwrap_or_default(),
        }
    }
}

/// Reads a tenant's report from its region. Processes that have made no counted call have nothing that can move.
fn read(file: &File, gpu: usize) -> Option<Report> {
    let word = |at: usize| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at as u64).ok().map(|()| u32::from_ne_bytes(bytes))
    };
    let account = offset_of!(Region, gpus) + gpu * size_of::<GpuAccount>();
    let mut report = Report { room_wanted: word(account + offset_of!(GpuAccount, room_wanted))?, ..Report::default() };
    let used = word(offset_of!(Region, slots_used))?.min(SLOTS as u32);
    for slot in read_slots(file, used as usize)? {
        let calls = slot.calls.load(Relaxed);
        if let Some(charge) = slot.gpus.get(gpu).filter(|_| calls != 0) {
            let (held, out) = (charge.charge.see().most(), charge.out.load(Relaxed));
            report.calls = report.calls.wrapping_add(calls);
            report.resident += held.saturating_sub(u64::from(out));
            report.out += u64::from(out);
            if held != 0 {
                report.left.push(slot.left.load(Relaxed));
            }
        }
    }
    Some(report)
}

/// Returns a copy of the first slots of a region, whatever they contain.
fn read_slots(file: &File, count: usize) -> Option<Vec<Slot>> {
    // SAFETY: slots consist of atomics and integers, for which every bit pattern is valid.
    let mut slots: Vec<Slot> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
    // SAFETY: the vector owns these bytes, and nothing else refers to them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast::<u8>(), size_of_val(&*slots)) };
    file.read_exact_at(bytes, offset_of!(Region, slots) as u64).ok()?;
    Some(slots)
}

/// A container on a GPU whose memory is overcommitted.
#[derive(Debug)]
pub struct Resident {
    page: &'static LimitsPage,
    limit: &'static GpuLimit,
    /// Where orders are published.
    pub turn: &'static Turn,
    source: Source,
    report: Report,
    /// Time of its last call.
    active_us: u64,
    /// Time of its last request.
    asked_us: u64,
    /// Time since which it asks; 0 if it does not.
    asks_since_us: u64,
    /// Time since which its memory is on the GPU.
    in_since_us: u64,
    /// How long its last move took.
    move_us: u64,
    /// Time until which it is not told to leave.
    skipped_until_us: u64,
}

impl Resident {
    /// Returns a tenant. `limit` and `turn` are parts of the page.
    #[must_use]
    pub fn new(page: &'static LimitsPage, limit: &'static GpuLimit, turn: &'static Turn, source: Source) -> Self {
        let report = source.read();
        Self {
            page,
            limit,
            turn,
            source,
            report,
            active_us: 0,
            asked_us: 0,
            asks_since_us: 0,
            in_since_us: 0,
            move_us: 0,
            skipped_until_us: 0,
        }
    }

    /// Reads its report.
    fn update(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.report, self.source.read());
        if self.report.calls != before.calls {
            self.active_us = now;
        }
        if before.out != 0 && self.report.out == 0 || before.resident == 0 && self.report.resident != 0 {
            self.in_since_us = now;
        }
        if self.report.room_wanted != before.room_wanted {
            self.asked_us = now;
            if self.asks_since_us == 0 {
                self.asks_since_us = now;
            }
        } else if now.saturating_sub(self.asked_us) > STILL_ASKS_US {
            self.asks_since_us = 0;
        }
    }

    /// Returns true if it can be told to leave at all.
    fn can_leave(&self, now: u64) -> bool {
        let is_evictable = self.limit.overcommit.load(Relaxed) == GpuLimit::EVICTABLE;
        is_evictable && self.report.resident != 0 && self.report.out == 0 && now >= self.skipped_until_us
    }

    /// Returns true if it is idle, or has been on the GPU for its quantum.
    fn may_be_told(&self, now: u64) -> bool {
        let quantum = (MOVES_PER_QUANTUM * self.move_us).max(MIN_QUANTUM_US);
        self.is_idle(now) || now.saturating_sub(self.in_since_us) >= quantum
    }

    fn is_idle(&self, now: u64) -> bool {
        now.saturating_sub(self.active_us.max(self.in_since_us)) >= IDLE_US
    }

    /// Returns true if all of its processes have followed an order.
    fn has_left(&self, order: u32) -> bool {
        self.report.left.iter().all(|&left| left == order)
    }

    fn publish(&self, order: u32) {
        self.turn.leave.store(order, Release);
        self.page.notify_turn(self.turn);
    }
}

/// Order that was given and is not yet followed.
#[derive(Clone, Copy, Debug)]
struct Order {
    turn: &'static Turn,
    number: u32,
    since_us: u64,
}

/// Decides for one GPU.
#[derive(Debug, Default)]
pub struct Residency {
    /// Tenants of the GPU.
    pub residents: Vec<Resident>,
    order: Option<Order>,
    /// Number of the last order.
    number: u32,
    /// Time of the end of the last order.
    ended_us: u64,
}

impl Residency {
    /// Reads the tenants' reports, decides, and publishes orders. Returns the time until the next call.
    pub fn tick(&mut self, now: u64) -> u64 {
        self.residents.iter_mut().for_each(|resident| resident.update(now));
        if self.has_ended(now) {
            self.decide(now);
        }
        let is_quiet = self.order.is_none() && self.residents.iter().all(|resident| resident.asks_since_us == 0);
        if is_quiet { QUIET_TICK_US } else { BUSY_TICK_US }
    }

    /// Tells a tenant to leave, or refuses a request, if there is one.
    fn decide(&mut self, now: u64) {
        // The first to ask is served first. Who was just given room may not have taken it yet.
        let asks = |resident: &&Resident| resident.asks_since_us != 0;
        let Some(asking) = self.residents.iter().filter(asks).min_by_key(|resident| resident.asks_since_us) else { return };
        if now.saturating_sub(self.ended_us) < STILL_ASKS_US {
            return;
        }
        let gives_way = |other: &&Resident| other.is_idle(now) || other.page.priority() >= asking.page.priority();
        let is_other = |other: &&Resident| !std::ptr::eq(other.turn, asking.turn);
        let others = || self.residents.iter().filter(is_other).filter(|other| other.can_leave(now)).filter(gives_way);
        let rank = |resident: &&Resident| (!resident.is_idle(now), std::cmp::Reverse(resident.page.priority()), resident.active_us);
        if let Some(next) = others().filter(|other| other.may_be_told(now)).min_by_key(rank) {
            // Never 0, which takes an order back.
            self.number = self.number.wrapping_add(1).max(1);
            next.publish(self.number);
            self.order = Some(Order { turn: next.turn, number: self.number, since_us: now });
        } else if others().next().is_none() {
            asking.turn.no_room.store(asking.report.room_wanted, Release);
        }
    }

    /// Returns true if no order is under way. Takes one back that is not followed for too long.
    fn has_ended(&mut self, now: u64) -> bool {
        let Some(order) = self.order else { return true };
        if let Some(resident) = self.residents.iter_mut().find(|resident| std::ptr::eq(resident.turn, order.turn)) {
            let took_us = now.saturating_sub(order.since_us);
            let has_left = resident.has_left(order.number);
            if !has_left && took_us < LEAVE_TIMEOUT_US {
                return false;
            }
            if has_left {
                resident.move_us = took_us;
            } else {
                resident.skipped_until_us = now + SKIPPED_US;
            }
            resident.publish(0);
        }
        (self.order, self.ended_us) = (None, now);
        true
    }

    /// Takes all orders back.
    pub fn end(&mut self) {
        self.residents.iter().for_each(|resident| resident.publish(0));
    }
}

#[cfg(test)]
mod tests;
