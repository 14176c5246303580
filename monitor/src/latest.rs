//! Latest snapshot and violation tallies, shared between the sampling loop and the HTTP server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::Tally;
use crate::snapshot::Snapshot;

/// Age above which the last snapshot counts as stale and the service as unhealthy.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(10);

/// Latest results of the sampling loop.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Results>);

#[derive(Debug, Default)]
struct Results {
    snapshot: Arc<Snapshot>,
    tallies: HashMap<String, Tally>,
    sampled: Option<Instant>,
}

impl Latest {
    fn lock(&self) -> MutexGuard<'_, Results> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last snapshot and the tallies by the container's directory name.
    #[must_use]
    pub fn get(&self) -> (Arc<Snapshot>, HashMap<String, Tally>) {
        let results = self.lock();
        (Arc::clone(&results.snapshot), results.tallies.clone())
    }

    /// Publishes a snapshot taken at `sampled`. Drops the tallies of containers that are gone, then lets `count` update the rest.
    pub fn publish(&self, snapshot: Arc<Snapshot>, sampled: Instant, count: impl FnOnce(&mut HashMap<String, Tally>)) {
        let mut results = self.lock();
        results.tallies.retain(|dir_name, _| snapshot.containers.iter().any(|container| container.dir_name == *dir_name));
        count(&mut results.tallies);
        (results.snapshot, results.sampled) = (snapshot, Some(sampled));
    }

    /// Returns whether a snapshot was taken within the last 10 s.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.lock().sampled.is_some_and(|sampled| sampled.elapsed() < MAX_SAMPLE_AGE)
    }
}
