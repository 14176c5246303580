//! Numbers of orders to leave.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

/// Steps of the clock in a second. Numbers that are two years apart are still compared rightly.
const STEPS_PER_SECOND: u128 = 16;

/// The last number: one counter for all GPUs, as a process that uses several remembers only the last order that it has followed.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Returns the number of the next order: newer than all before, also those of an arbiter that ran before this one. Never 0.
pub fn next() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = (since.as_millis() * STEPS_PER_SECOND / 1000) as u32;
    let after = |last: u32| if last != 0 && !is_newer(clock, last) { last.wrapping_add(1) } else { clock }.max(1);
    let last = LAST.fetch_update(Relaxed, Relaxed, |last| Some(after(last))).unwrap_or_default();
    after(last)
}

/// Returns whether an order was given after another one. Numbers wrap around.
fn is_newer(order: u32, other: u32) -> bool {
    (order.wrapping_sub(other) as i32) > 0
}

/// Returns whether a process has followed an order, which last followed `left`: this one, or a later one.
pub fn is_followed(order: u32, left: u32) -> bool {
    left != 0 && !is_newer(order, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_numbers_only_grow() {
        let (first, second) = (next(), next());
        assert!(first != 0 && is_followed(first, second) && !is_followed(second, first) && !is_followed(first, 0));
        // An arbiter that ran an hour ago had lower ones.
        assert!(is_followed(first - 16 * 3600, first) && is_followed(u32::MAX, 1));
    }
}
