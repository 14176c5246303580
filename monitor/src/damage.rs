//! Log of containers whose files are damaged.

use std::collections::HashSet;

use tracing::warn;

use crate::snapshot::Snapshot;

/// Directory names of the containers whose damage was logged. Each is logged once: a tenant may damage and mend its region at any rate.
#[derive(Debug, Default)]
pub struct DamageLog(HashSet<String>);

impl DamageLog {
    /// Logs what is damaged in a snapshot for the first time.
    pub fn update(&mut self, snapshot: &Snapshot) {
        for container in &snapshot.containers {
            if let Some(reason) = &container.damaged
                && self.0.insert(container.dir_name.clone())
            {
                warn!(container = container.name(), id = container.id, reason, "the container's files are damaged");
            }
        }
        self.0.retain(|name| snapshot.containers.iter().any(|container| container.dir_name == *name));
    }
}
