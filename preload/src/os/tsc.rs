//! The processor's time stamp counter as a clock, at a third of the cost of the system's. It is set by the system's clock at every slow
//! launch, so it need not be accurate for long, and an error only sends a launch to the slow path.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Nanoseconds in 2^24 ticks; 0 while unknown.
static SPEED: AtomicU64 = AtomicU64::new(0);
/// Offset to add to the scaled counter, wrapping.
static OFFSET: AtomicU64 = AtomicU64::new(0);
/// First reading: nanoseconds and ticks.
static FIRST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Time between the two readings that determine the speed, in nanoseconds.
const APART: u64 = 20_000_000;

/// Reads the counter.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

/// Other processors have no counter here.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn counter() -> Option<u64> {
    None
}

/// Converts ticks to nanoseconds.
#[inline]
fn scaled(ticks: u64, speed: u64) -> u64 {
    ((u128::from(ticks) * u128::from(speed)) >> 24) as u64
}

/// Returns approximate nanoseconds of `CLOCK_MONOTONIC`; `None` until the speed of the counter is known.
#[inline]
pub fn now() -> Option<u64> {
    let speed = SPEED.load(Relaxed);
    if speed == 0 {
        return None;
    }
    Some(scaled(counter()?, speed).wrapping_add(OFFSET.load(Relaxed)))
}

/// Sets the clock to `nanos` nanoseconds of `CLOCK_MONOTONIC`.
pub fn compare(nanos: u64) {
    let Some(ticks) = counter() else { return };
    let speed = SPEED.load(Relaxed);
    if speed != 0 {
        OFFSET.store(nanos.wrapping_sub(scaled(ticks, speed)), Relaxed);
        return;
    }
    let [first_nanos, first_ticks] = &FIRST;
    let began = first_nanos.load(Relaxed);
    if began == 0 {
        first_ticks.store(ticks, Relaxed);
        first_nanos.store(nanos, Relaxed);
    } else if nanos.saturating_sub(began) > APART {
        let passed = ticks.saturating_sub(first_ticks.load(Relaxed)).max(1);
        let speed = ((u128::from(nanos - began) << 24) / u128::from(passed)) as u64;
        OFFSET.store(nanos.wrapping_sub(scaled(ticks, speed)), Relaxed);
        SPEED.store(speed, Relaxed);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_counter_follows_the_systems_clock() {
        let clock = std::time::Instant::now();
        let system = || clock.elapsed().as_nanos() as u64 + 1_000_000_000;
        while SPEED.load(Relaxed) == 0 {
            compare(system());
        }
        for _ in 0..100 {
            compare(system());
            let before = system();
            let (reading, after) = (now().unwrap(), system());
            // A reading is between two of the system's, within the counter's error over so short a time.
            assert!(reading + 20_000 >= before && reading <= after + 20_000, "{before} {reading} {after}");
        }
    }
}
