//! The ledger of device memory: one total for each container and GPU, one charge for each process and GPU.
//!
//! A reservation is one compare-and-swap on the total, so that racing processes cannot both pass. A process can be killed between any two
//! instructions, so the total and the charges can differ. The order of the steps ensures that the total is then too *high*, never too low,
//! and [`recount`] lowers it again without stopping any process.
//!
//! A charge is two numbers in one word: `held`, which is in the total, and `intent`, which may or may not be in the total yet. The word also
//! has a generation, which changes when another process takes the slot. A process that clears a dead process's charge late, after another
//! one has cleared it and a new process has taken the slot, must not clear the new charge.
//!
//! | step | reserve n | release n |
//! |---|---|---|
//! | 1 | intent += n | held -= n, intent += n |
//! | 2 | total += n, if it stays within the limit | total -= n |
//! | 3 | intent -= n, held += n | intent -= n |
//!
//! At every instant a process's part of the total is at least `held` and at most `held + intent`. A recount reads the total, adds up
//! `held + intent` of the living processes, and stores the sum if the total has not changed in between. The total has a version, so a change
//! back to the same value counts as a change. Every part was constant in that interval, so the sum is never below the true total. It can be
//! above it by the operations in flight, which the next recount corrects.

use core::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::SeqCst};

/// Size of a page of the ledger, in bytes.
pub const PAGE: u64 = 4096;

/// Converts bytes to pages, rounded up. Saturates at `u32::MAX`.
#[must_use]
pub const fn pages(bytes: u64) -> u32 {
    let pages = bytes.div_ceil(PAGE);
    if pages > u32::MAX as u64 { u32::MAX } else { pages as u32 }
}

/// Memory that a container holds on one GPU: pages in the upper 40 bits, a version in the lower 24.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Total(AtomicU64);

const VERSION_BITS: u32 = 24;

const fn pack_total(pages: u64, previous: u64) -> u64 {
    (pages << VERSION_BITS) | (previous.wrapping_add(1) & ((1 << VERSION_BITS) - 1))
}

/// Memory that one process holds on one GPU: 8 bits of generation, 28 bits of `held` pages, 28 bits of `intent`. The sum of `held` and
/// `intent` never exceeds [`MOST`], so neither overflows into its neighbour.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Charge(AtomicU64);

const FIELD_BITS: u32 = 28;
/// Most pages that one process can hold and request on one GPU: 1 TiB.
pub const MOST: u32 = (1 << FIELD_BITS) - 1;
const GENERATION: u64 = 1 << (2 * FIELD_BITS);

const fn word(held: u32, intent: u32) -> u64 {
    ((held as u64) << FIELD_BITS) | intent as u64
}

const fn held(word: u64) -> u32 {
    (word >> FIELD_BITS) as u32 & MOST
}

const fn intent(word: u64) -> u32 {
    word as u32 & MOST
}

/// Value of a charge at one moment, for [`Charge::clear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// Returns the most pages that the process may have in the total.
    #[must_use]
    pub fn most(self) -> u64 {
        u64::from(held(self.0)) + u64::from(intent(self.0))
    }

    /// Returns the generation, modulo 256: which of the processes that have had the slot it was.
    #[must_use]
    pub fn generation(self) -> u8 {
        (self.0 / GENERATION) as u8
    }
}

/// Error of a reservation that would exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Pages that the container held.
    pub used: u64,
}

impl Total {
    /// Returns the pages in use.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.0.load(SeqCst) >> VERSION_BITS
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages().saturating_mul(PAGE)
    }

    fn add(&self, count: u32, limit: u64) -> Result<u64, Full> {
        let mut seen = self.0.load(Acquire);
        loop {
            let used = seen >> VERSION_BITS;
            let after = used + u64::from(count);
            if after > limit {
                return Err(Full { used });
            }
            match self.0.compare_exchange_weak(seen, pack_total(after, seen), SeqCst, Acquire) {
                Ok(_) => return Ok(after),
                Err(now) => seen = now,
            }
        }
    }

    fn subtract(&self, count: u32) {
        let mut seen = self.0.load(Acquire);
        loop {
            // Saturating: a tenant can write anything here, and must not gain from an underflow.
            let after = (seen >> VERSION_BITS).saturating_sub(u64::from(count));
            match self.0.compare_exchange_weak(seen, pack_total(after, seen), AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

impl Charge {
    /// Returns the pages that the process holds, without operations in flight.
    #[must_use]
    pub fn held(&self) -> u32 {
        held(self.0.load(Acquire))
    }

    /// Returns the most pages that the process may have in the total: held and in flight.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.see().most()
    }

    /// Returns the present value.
    #[must_use]
    pub fn see(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// Returns true if an operation is in flight, or was when the process was killed.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        intent(self.0.load(Acquire)) != 0
    }

    /// Steps 1 and 2 of a reservation: adds `count` pages to `total`, unless that would exceed `limit` pages, or [`MOST`] for this charge.
    /// [`Charge::finish`] must follow. Returns the pages that the container then holds.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn begin(&self, total: &Total, count: u32, limit: u64) -> Result<u64, Full> {
        let mut seen = self.0.load(Acquire);
        loop {
            if Seen(seen).most() + u64::from(count) > u64::from(MOST) {
                return Err(Full { used: total.pages() });
            }
            match self.0.compare_exchange_weak(seen, seen + word(0, count), AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        total.add(count, limit.min(u64::MAX >> VERSION_BITS)).inspect_err(|_| {
            self.0.fetch_sub(word(0, count), AcqRel);
        })
    }

    /// Step 3 of a reservation that was begun with `begun` pages: `taken` pages were really allocated. Any excess is charged without a limit,
    /// because it is allocated already.
    pub fn finish(&self, total: &Total, begun: u32, taken: u32) {
        let (mut begun, mut taken) = (begun, taken);
        if taken < begun {
            total.subtract(begun - taken);
        } else if taken > begun {
            match self.begin(total, taken - begun, u64::MAX) {
                Ok(_) => begun = taken,
                // A process with more than 1 TiB on one GPU cannot be represented.
                Err(_) => taken = begun,
            }
        }
        self.0.fetch_add(word(taken, 0).wrapping_sub(word(0, begun)), AcqRel);
    }

    /// Reserves `count` pages in all three steps, unless `total` would exceed `limit` pages.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed.
    pub fn reserve(&self, total: &Total, count: u32, limit: u64) -> Result<(), Full> {
        self.begin(total, count, limit)?;
        self.finish(total, count, count);
        Ok(())
    }

    /// Releases `count` pages, or all held pages if fewer are held.
    pub fn release(&self, total: &Total, count: u32) {
        let mut seen = self.0.load(Acquire);
        let count = loop {
            let count = count.min(held(seen));
            let moved = seen.wrapping_sub(word(count, 0)).wrapping_add(word(0, count));
            match self.0.compare_exchange_weak(seen, moved, AcqRel, Acquire) {
                Ok(_) => break count,
                Err(now) => seen = now,
            }
        };
        total.subtract(count);
        self.0.fetch_sub(word(0, count), AcqRel);
    }

    /// Clears the charge of a process that was dead when its charge was `seen`. Returns false if the charge has changed: then another process
    /// has cleared it, and the slot may belong to a living process. The total stays too high until the next [`recount`].
    pub fn clear(&self, seen: Seen) -> bool {
        self.0.compare_exchange(seen.0, seen.0 & !(GENERATION - 1), AcqRel, Acquire).is_ok()
    }

    /// Clears the charge and begins the next generation. Only the new owner of the slot may do this.
    pub fn begin_anew(&self) {
        let next = (self.0.load(Acquire) & !(GENERATION - 1)).wrapping_add(GENERATION);
        self.0.store(next, core::sync::atomic::Ordering::Release);
    }
}

/// Lowers `total` to the sum of the charges, if it has not changed meanwhile. Returns true if it was lowered.
///
/// The caller has cleared the charges of dead processes. `charges` is called after the total was read: a process that joined between the two
/// would otherwise be in the total and not in the sum.
pub fn recount<'a, I: Iterator<Item = &'a Charge>>(total: &Total, charges: impl FnOnce() -> I) -> bool {
    let seen = total.0.load(Acquire);
    let sum = charges().fold(0u64, |sum, charge| sum.saturating_add(charge.most()));
    sum < seen >> VERSION_BITS && total.0.compare_exchange(seen, pack_total(sum, seen), AcqRel, Acquire).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn the_limit_is_exact() {
        let (total, charge) = (Total::default(), Charge::default());
        assert_eq!(charge.reserve(&total, 7, 10), Ok(()));
        assert_eq!(charge.reserve(&total, 4, 10), Err(Full { used: 7 }));
        assert_eq!(charge.reserve(&total, 3, 10), Ok(()));
        assert_eq!((total.pages(), charge.held(), charge.in_flight()), (10, 10, false));
        charge.release(&total, 4);
        assert_eq!((total.pages(), charge.held(), charge.in_flight()), (6, 6, false));
        charge.release(&total, 100);
        assert_eq!((total.pages(), charge.held()), (0, 0));
    }

    #[test]
    fn the_amount_really_allocated_is_charged() {
        let (total, charge) = (Total::default(), Charge::default());
        for (begun, taken) in [(8, 8), (8, 3), (8, 0), (8, 12)] {
            charge.begin(&total, begun, 1000).unwrap();
            charge.finish(&total, begun, taken);
        }
        assert_eq!((total.pages(), charge.held(), charge.in_flight()), (23, 23, false));
    }

    #[test]
    fn large_amounts_saturate_without_a_limit() {
        let (total, charge) = (Total::default(), Charge::default());
        assert_eq!(charge.reserve(&total, u32::MAX, u64::MAX), Err(Full { used: 0 }));
        assert_eq!(charge.reserve(&total, MOST, u64::MAX), Ok(()));
        assert_eq!(charge.reserve(&total, 1, u64::MAX), Err(Full { used: u64::from(MOST) }));
        assert_eq!((total.bytes(), charge.held(), charge.in_flight()), (u64::from(MOST) * PAGE, MOST, false));
        charge.release(&total, MOST - 1);
        assert_eq!((total.pages(), charge.held(), charge.in_flight()), (1, 1, false));
        assert_eq!((pages(1), pages(PAGE), pages(PAGE + 1), pages(u64::MAX)), (1, 1, 2, u32::MAX));
    }

    /// For every point at which a process can be killed: the total is never too low, and a recount without the process is exact.
    #[test]
    fn a_kill_between_any_two_steps_leaves_no_charge() {
        for step in 0..=5 {
            let (total, alive, dead) = (Total::default(), Charge::default(), Charge::default());
            alive.reserve(&total, 5, 100).unwrap();
            dead.reserve(&total, 3, 100).unwrap();
            match step {
                0 => {}
                1 => _ = dead.0.fetch_add(word(0, 4), SeqCst),
                2 => {
                    dead.0.fetch_add(word(0, 4), SeqCst);
                    total.add(4, 100).unwrap();
                }
                3 => dead.reserve(&total, 4, 100).unwrap(),
                4 => _ = dead.0.fetch_sub(word(2, 0) - word(0, 2), SeqCst),
                _ => {
                    dead.0.fetch_sub(word(2, 0) - word(0, 2), SeqCst);
                    total.subtract(2);
                }
            }
            assert!(total.pages() >= 5 + u64::from(dead.held()), "step {step}");
            assert!(dead.clear(dead.see()));
            assert!(recount(&total, || [&alive, &dead].into_iter()));
            assert_eq!(total.pages(), 5, "step {step}");
        }
    }

    /// A reservation during a recount is kept, whether the sum includes it or not.
    #[test]
    fn a_reservation_during_a_recount_is_kept() {
        let (total, first, second) = (Total::default(), Charge::default(), Charge::default());
        first.reserve(&total, 5, 100).unwrap();
        let lowered = recount(&total, || {
            second.reserve(&total, 7, 100).unwrap();
            core::iter::once(&first)
        });
        assert_eq!((lowered, total.pages()), (false, 12));
    }

    /// A process that read a dead process's charge and was then delayed must not clear the charge of the slot's new owner.
    #[test]
    fn a_late_clear_spares_the_new_owner() {
        let (total, charge) = (Total::default(), Charge::default());
        charge.reserve(&total, 5, 100).unwrap();
        let late = charge.see();
        assert!(charge.clear(charge.see()));
        charge.begin_anew();
        charge.reserve(&total, 5, 100).unwrap();
        assert_eq!(charge.see().most(), late.most());
        assert!(!charge.clear(late));
        assert_eq!(charge.held(), 5);
    }

    #[test]
    fn a_recount_among_the_living_is_never_too_low() {
        let (total, stop) = (Total::default(), AtomicBool::new(false));
        let charges: [Charge; 4] = core::array::from_fn(|_| Charge::default());
        let base = Charge::default();
        base.reserve(&total, 1000, u64::MAX).unwrap();
        std::thread::scope(|scope| {
            for (seed, charge) in charges.iter().enumerate() {
                let (total, stop) = (&total, &stop);
                scope.spawn(move || {
                    let mut random = seed as u32 + 1;
                    for _ in 0..200_000 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let count = random >> 28;
                        charge.reserve(total, count, u64::MAX).unwrap();
                        assert!(total.pages() >= 1000 + u64::from(count));
                        charge.release(total, count);
                    }
                    stop.store(true, SeqCst);
                });
            }
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    recount(&total, || charges.iter().chain([&base]));
                }
            });
        });
        recount(&total, || charges.iter().chain([&base]));
        assert_eq!(total.pages(), 1000);
    }
}
