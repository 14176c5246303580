//! Decides whose memory is on a GPU that has less than its tenants were promised. Times are µs.
//!
//! Nothing happens until a tenant finds the GPU full and asks for room. Evictable tenants are then told to leave, one after another, and are
//! held out until that tenant stops asking:
//!
//! ```text
//!  out, and asks for room, too ──► first: of several that come back at once, none would find enough
//!  idle for 200 ms ──► next, the longest idle one before the others
//!  waits for more room itself ──► next, for another that is on the GPU: each would wait for the other
//!  busy ──► only after a quantum on the GPU, and never for a tenant of lower priority
//!  no tenant can leave ──► the request is refused
//! ```
//!
//! A tenant that has left cannot come back while its order stands. It is taken back once the one that it was given for has its room or was
//! refused. So a large request is met or refused in finite time, and no tenant takes room that was made for another. A tenant that others
//! leave for knows it, and its memory comes back while theirs leaves. Tenants that ask wait in a queue; one that was served goes to its end.
//! Only one is served at a time, and others that are out and ask are held there meanwhile.
//!
//! The quantum is [`MOVES_PER_QUANTUM`](tuning::MOVES_PER_QUANTUM) times what the tenant's last move took, so that two tenants that
//! do not fit together lose a thirtieth to moving. Meanwhile it stands by: it makes the host memory for its move. An idle tenant copies its
//! memory there as well while others are out, so that it makes room at once when they come back.
//!
//! A tenant says itself that it is at work, that it asks and that it has left. One that lies keeps others waiting for
//! [`LEAVE_TIMEOUT_US`](tuning::LEAVE_TIMEOUT_US) and 1 µs a page, and is then not asked for
//! [`SKIPPED_US`](tuning::SKIPPED_US), and after that only after all others. One that seems to be on its way
//! back delays a refusal by [`COME_BACK_US`] at most.

mod orders;
mod report;
mod resident;
pub mod tuning;

use std::cmp::Reverse;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_region::limits::Turn;

pub use report::{Report, Source};
use resident::Order;
pub use resident::Resident;
use tuning::{BUSY_TICK_US, COME_BACK_US, QUIET_TICK_US, STILL_ASKS_US};

/// Decides for one GPU.
#[derive(Debug, Default)]
pub struct Residency {
    /// Tenants of the GPU.
    pub residents: Vec<Resident>,
    /// Time at which the last order was followed or taken back.
    ended_us: u64,
    /// Time of the next look at all tenants, unless one asks for room before.
    next_look_us: u64,
}

impl Residency {
    /// Reads the tenants' reports, decides, and publishes orders. Returns the time until the next call.
    pub fn tick(&mut self, now: u64) -> u64 {
        if now < self.next_look_us && !self.residents.iter().any(Resident::asks_anew) {
            return BUSY_TICK_US;
        }
        for resident in &mut self.residents {
            resident.update(now);
            if resident.follow(now) {
                self.ended_us = now;
            }
        }
        self.release_held();
        self.let_stand_by();
        let is_leaving = |resident: &Resident| resident.order.is_some_and(|order| !order.is_followed);
        // Who was just given room may not have taken it yet.
        if !self.residents.iter().any(is_leaving) && now.saturating_sub(self.ended_us) >= STILL_ASKS_US {
            self.decide(now);
        }
        self.tell_served();
        let is_quiet = self.residents.iter().all(|resident| resident.order.is_none() && resident.asks.is_none());
        self.next_look_us = if is_quiet { now + QUIET_TICK_US } else { 0 };
        BUSY_TICK_US
    }

    /// Lets tenants stand by: while others ask for room; and idle ones while others are out, but not while these need the bus to come back.
    fn let_stand_by(&mut self) {
        let asking = self.residents.iter().filter(|resident| resident.asks.is_some()).count();
        let is_short = asking == 0 && self.residents.iter().any(|resident| resident.report.out != 0);
        for resident in &self.residents {
            let stands_by = match () {
                () if resident.report.resident == 0 => 0,
                () if asking > usize::from(resident.asks.is_some()) => Turn::MAKE_HOST_MEMORY,
                () if is_short => Turn::COPY_AHEAD,
                () => 0,
            };
            if resident.turn.stand_by.swap(stands_by, Relaxed) != stands_by && stands_by != 0 {
                resident.page.notify_turn(resident.turn);
            }
        }
    }

    /// Tells tenants whether others are leaving for them: memory that comes back follows the memory that leaves, piece by piece.
    fn tell_served(&self) {
        for resident in &self.residents {
            let is_leaving_for = |other: &Resident| other.is_told_for(resident.turn) && other.order.is_some_and(Order::makes_room);
            let is_served = self.residents.iter().any(is_leaving_for);
            resident.turn.served.store(u32::from(is_served), Release);
        }
    }

    /// Takes back the orders that were given for tenants that ask no more.
    fn release_held(&mut self) {
        let asking: Vec<*const Turn> =
            self.residents.iter().filter(|resident| resident.asks.is_some()).map(|resident| &raw const *resident.turn).collect();
        let is_over = |order: &Order| order.is_followed && !asking.contains(&(&raw const *order.asking));
        self.residents.iter_mut().filter(|resident| resident.order.as_ref().is_some_and(is_over)).for_each(Resident::release);
    }

    /// Tells one tenant to leave, and refuses each request for which no tenant can leave. Once somebody has left for a tenant, that one comes
    /// before all others until it has its room or is refused: of two that are served by turns, none might ever get enough.
    fn decide(&mut self, now: u64) {
        let is_served = |place: &usize| self.residents.iter().any(|resident| resident.is_told_for(self.residents[*place].turn));
        let mut queue: Vec<usize> = (0..self.residents.len()).filter(|&place| self.residents[place].is_in_queue()).collect();
        let served = queue.iter().copied().find(is_served);
        queue.retain(|&place| served.is_none_or(|served| served == place));
        // Others keep their place in the queue, but have not found out yet whether there is room.
        queue.retain(|&place| self.residents[place].asked_us == now);
        queue.sort_by_key(|&place| self.residents[place].queued_us);
        for place in queue {
            let asking = self.residents[place].turn;
            let next = self.next_to_leave(place, now);
            if !matches!(next, Err(NoCandidate)) {
                self.residents[place].nobody_since_us = None;
            }
            match next {
                Ok(Some(next)) => {
                    self.residents[next].tell(asking, now);
                    self.residents[place].queued_us = now;
                    return;
                }
                Err(NoCandidate) if !self.may_find_room(place, now) => self.refuse(place, now),
                _ => {}
            }
        }
    }

    /// Returns true if it is too early to refuse a request for which no tenant can leave. The tenant may have found room since it asked. Another
    /// tenant may be on its way back, and can leave once it is there. Both delays are bounded, as tenants may lie.
    fn may_find_room(&mut self, asking: usize, now: u64) -> bool {
        let since = now.saturating_sub(*self.residents[asking].nobody_since_us.get_or_insert(now));
        let mut others = self.residents.iter().enumerate().filter(|&(place, _)| place != asking);
        since < STILL_ASKS_US || since < COME_BACK_US && others.any(|(_, other)| other.may_be_on_its_way(now))
    }

    /// Refuses a request, and takes the orders back that were given for it.
    fn refuse(&mut self, place: usize, now: u64) {
        let own = &mut self.residents[place];
        own.turn.no_room.store(own.report.room_wanted, Release);
        (own.queued_us, own.nobody_since_us) = (now, None);
        let asking = own.turn;
        self.residents.iter_mut().filter(|resident| resident.is_told_for(asking)).for_each(Resident::release);
    }

    /// Returns the tenant that is told to leave for the asking one; `None` if one can leave later.
    fn next_to_leave(&self, asking: usize, now: u64) -> Result<Option<usize>, NoCandidate> {
        let own = &self.residents[asking];
        let gives_way = |other: &Resident| other.is_idle(now) || other.page.priority() >= own.page.priority();
        let others = || self.residents.iter().enumerate().filter(|&(place, _)| place != asking);
        let candidates = || others().filter(|(_, other)| other.can_leave(now) && gives_way(other));
        // Two tenants on the GPU that both wait for more room block each other, so one leaves at once. A tenant that is out holds no room, so
        // others keep their quantum.
        let is_in = own.report.resident != 0;
        let may_be_told = |other: &Resident| other.waits_outside(now) || other.may_be_told(now) || is_in && other.is_waiting(now);
        let rank = |&(_, other): &(usize, &Resident)| {
            let kind = (!other.waits_outside(now), !other.is_idle(now), !other.is_waiting(now));
            (other.was_skipped(), kind, Reverse(other.page.priority()), other.active_us)
        };
        if candidates().next().is_some() {
            return Ok(candidates().filter(|(_, other)| may_be_told(other)).min_by_key(rank).map(|(place, _)| place));
        }
        // Idle processes of the container make room for one that waits to come back.
        if own.report.out != 0 && own.report.resident != 0 && own.can_leave(now) && own.is_idle(now) {
            return Ok(Some(asking));
        }
        Err(NoCandidate)
    }

    /// Takes all orders back.
    pub fn end(&mut self) {
        for resident in &mut self.residents {
            resident.turn.stand_by.store(0, Relaxed);
            resident.turn.served.store(0, Relaxed);
            resident.release();
        }
    }
}

/// No tenant can leave.
#[derive(Debug)]
struct NoCandidate;

#[cfg(test)]
mod tests;
