//! What the parts and the supervisor tell the other parts, through [mailboxes](super::mailbox).

use std::collections::HashMap;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::metrics::Tally;
use crate::snapshot::Snapshot;

/// Result of one sample.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Publication {
    /// Time of the sample by [`uptime`].
    pub sampled: Duration,
    /// The sample.
    pub snapshot: Snapshot,
    /// Tallies of violations by the container's directory name. A new incarnation of the part that counts goes on from these.
    pub tallies: HashMap<String, Tally>,
}

/// State of the parts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Time of the report by [`uptime`].
    pub reported: Duration,
    /// The parts that should run.
    pub parts: Vec<PartStatus>,
}

/// State of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStatus {
    /// Name.
    pub name: String,
    /// Time of the last beat by [`uptime`]. `None` before the first one.
    pub beat: Option<Duration>,
    /// How often the part was started again.
    pub restarts: u64,
}

/// Returns the monotonic time, which all processes of the machine share.
#[must_use]
pub fn uptime() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
