//! Latest snapshot and violation tallies, shared between the sampling loop and the HTTP server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;

use crate::http::{Page, Pages};
use crate::metrics::{self, Dialect, Tally};
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

/// The latest results as the pages of the HTTP server.
#[derive(Debug)]
pub struct Exposition {
    /// Node name in HAMi's metrics.
    pub node: String,
    /// HAMi's metric names to expose.
    pub dialect: Dialect,
    /// Results to expose.
    pub latest: Arc<Latest>,
}

impl Pages for Exposition {
    fn metrics(&self) -> Page {
        let (snapshot, tallies) = self.latest.get();
        let tally = |dir_name: &str| tallies.get(dir_name).copied().unwrap_or_default();
        match metrics::text(&snapshot, &self.node, self.dialect, tally) {
            Ok(text) => Page { status: StatusCode::OK, content_type: metrics::CONTENT_TYPE, text: text.into() },
            Err(error) => Page::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }

    fn health(&self) -> Page {
        if self.latest.is_healthy() {
            Page::plain(StatusCode::OK, "ok\n")
        } else {
            Page::plain(StatusCode::SERVICE_UNAVAILABLE, "the last snapshot is stale\n")
        }
    }
}
