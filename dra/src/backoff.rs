//! Waits between attempts: a cluster has thousands of nodes, whose plugins must not overload an API server that refuses or recovers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Longest wait after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait of all.
const LAST: Duration = Duration::from_secs(300);

/// Waits that double with each failure, from 1 s to 5 min. Each is cut at random by up to a half, so that nodes that failed together do not
/// try again together.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the wait after one more failure.
    pub fn failed(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(LAST);
        self.failures = self.failures.saturating_add(1);
        // A hasher's keys are random.
        let random = RandomState::new().build_hasher().finish() % 1000;
        longest.mul_f64(0.5 + random as f64 / 2000.0)
    }

    /// Starts again with the shortest wait.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_differ() {
        let (mut one, mut other) = (Backoff::default(), Backoff::default());
        let waits: Vec<_> = (0..40).map(|_| (one.failed(), other.failed())).collect();
        for (failures, (wait, _)) in waits.iter().enumerate() {
            let longest = if failures < 9 { Duration::from_secs(1 << failures) } else { LAST };
            assert!(*wait >= longest / 2 && *wait <= longest, "{failures}: {wait:?}");
        }
        assert!(waits.iter().any(|(one, other)| one != other));
        one.succeeded();
        assert!(one.failed() <= FIRST);
    }
}
