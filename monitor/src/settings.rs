//! Settings of `vgpu monitor`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vgpu_config::policy::OnViolation;

use crate::metrics::Dialect;

/// Settings of the service, which the supervisor hands to its parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// State directory of the host.
    pub state_dir: PathBuf,
    /// Node name in HAMi's metrics.
    pub node: String,
    /// HAMi's metric names to expose.
    pub dialect: Dialect,
    /// Response to violations.
    pub on_violation: OnViolation,
    /// Time for which a violation must last before its processes are ended.
    pub grace: Duration,
    /// Whether the arbiter gives turns to containers that share a GPU.
    pub turns: bool,
}
