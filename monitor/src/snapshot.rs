//! State of all GPUs and containers at one moment: limits, what the containers' accounts claim, and what NVML reports.
//!
//! `vgpu show --json` prints a snapshot, so the serialized names are kept where a field was renamed.

use serde::{Deserialize, Serialize};

use crate::account::Moves;
use crate::engine_names::Engine;
use crate::text::display_name;

/// State at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot in seconds since 1970.
    pub time: f64,
    /// Reason why NVML is unavailable.
    pub nvml_error: Option<String>,
    /// GPUs of this machine, by index.
    pub gpus: Vec<Gpu>,
    /// Containers with limits, the oldest first.
    pub containers: Vec<ContainerState>,
}

/// State of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Total memory in bytes.
    pub memory: u64,
    /// Used memory in bytes. `None` if NVML does not report it.
    pub memory_used: Option<u64>,
    /// Utilization in percent. `None` if NVML does not report it.
    pub utilization: Option<u32>,
    /// Whether NVML listed the GPU's processes.
    pub processes_known: bool,
    /// Processes on the GPU that belong to no container with limits.
    pub unlimited: Vec<Unlimited>,
}

/// Process on a GPU without limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlimited {
    /// PID on the host.
    pub pid: u32,
    /// Program name.
    pub name: String,
    /// Held memory according to NVML, in bytes. `None` if NVML does not report it.
    pub held: Option<u64>,
    /// Percent of the GPU's time that it used lately according to NVML. `None` if NVML cannot tell.
    pub observed: Option<u32>,
}

/// State of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    /// Container ID.
    pub id: String,
    /// Name of the container's directory in the state directory. Unlike the ID, it is unique across runtimes.
    #[serde(rename = "place")]
    pub dir_name: String,
    /// Container name in its pod.
    pub container: Option<String>,
    /// Pod name.
    pub pod: Option<String>,
    /// Pod namespace.
    pub namespace: Option<String>,
    /// Name that an engine gave it outside of Kubernetes.
    #[serde(rename = "name")]
    pub engine_name: Option<String>,
    /// The engine that gave it.
    pub named_by: Option<Engine>,
    /// Creation time in seconds since 1970.
    pub created: u64,
    /// Priority. Turns of 0 precede those of 1.
    pub priority: u32,
    /// Number of changes of the limits since the creation.
    pub changes: u64,
    /// Reason why the account is unreadable.
    pub damaged: Option<String>,
    /// Whether the container's own processes damaged it, and not a failure of the host.
    pub is_tampered: bool,
    /// Whether NVIDIA's MPS limits the GPU time.
    pub is_mps: bool,
    /// Shares of GPUs, in the container's order.
    pub gpus: Vec<Share>,
    /// PID of the container's first process on the host, if known.
    pub init: Option<u32>,
    /// Start time of that process in clock ticks since boot.
    pub init_started: Option<u64>,
    /// Path in the container of HAMi's shared region, if requested.
    pub hami_cache: Option<String>,
    /// Path in the container of the trace logs, if requested.
    pub trace_dir: Option<String>,
}

/// One container's share of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// `GPU-…`.
    pub uuid: String,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// Compute limit in percent.
    pub cores: Option<u32>,
    /// Compute limit in percent while no other container uses the GPU.
    pub cores_soft: Option<u32>,
    /// Compute limit in percent that applies because no other container uses the GPU. 0 if none does.
    pub lent: u32,
    /// Memory that the container may hold beyond the limit, as it held it when the limit was lowered, in bytes.
    pub by_right: Option<u64>,
    /// Device memory charged to living processes in bytes, by the container's account.
    pub charged: u64,
    /// Total of the container's account in bytes, with charges of dead processes that are not yet released.
    pub booked: u64,
    /// Part of `charged` for contexts, modules and stacks, in bytes.
    pub overhead: u64,
    /// Part of `charged` for managed memory, in bytes. NVML does not list it by process.
    pub managed: u64,
    /// Memory spilled to the host, in bytes.
    pub spilled: u64,
    /// Part of `charged` that was moved to the host while others need the GPU's memory, in bytes.
    pub moved_out: u64,
    /// Moves of its memory to the host so far.
    pub moves_out: Moves,
    /// Moves of its memory back to the GPU so far.
    pub moves_in: Moves,
    /// Memory that the container's processes hold according to NVML, in bytes. `None` if unknown.
    pub held: Option<u64>,
    /// Number of memory requests refused by the limit.
    pub refused: u64,
    /// Time of the first refusal in seconds since 1970.
    pub first_refusal: Option<f64>,
    /// Charged GPU time in nanoseconds.
    pub used_ns: u64,
    /// Time for which launches were delayed, summed over threads, in nanoseconds.
    pub throttled_ns: u64,
    /// Number of times that the arbiter opened or closed the container's turn.
    pub turn_changes: u64,
    /// Percent of the GPU's time since the last sample: as charged if there is a compute limit, else as NVML reports.
    pub utilization: Option<f64>,
    /// Percent of the GPU's time that the container's processes used lately according to NVML. `None` if NVML cannot tell.
    pub observed: Option<f64>,
    /// GPU time of the container's processes according to NVML since the observer started, in nanoseconds.
    pub observed_ns: Option<u64>,
    /// Time that `observed_ns` is of, in nanoseconds.
    pub observed_over_ns: u64,
    /// Percent of the time since the last sample for which launches were delayed, summed over threads.
    pub throttled: Option<f64>,
    /// Time when charged GPU time last grew, in seconds since 1970.
    pub last_kernel: Option<f64>,
    /// The container's processes on this GPU.
    pub processes: Vec<GpuProcess>,
}

/// Process of a container on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// PID on the host. `None` if NVML does not list the process.
    pub pid: Option<u32>,
    /// PID in the container.
    #[serde(rename = "inner")]
    pub inner_pid: u32,
    /// Start time in clock ticks since boot.
    #[serde(rename = "started")]
    pub start_time: u64,
    /// Program name.
    pub name: String,
    /// Charged memory in bytes. `None` if the account lacks the process.
    pub charged: Option<u64>,
    /// Part of `charged` for contexts, modules and stacks, in bytes.
    pub overhead: u64,
    /// Held memory according to NVML, in bytes. `None` if NVML does not report it.
    pub held: Option<u64>,
    /// Percent of the GPU's time that it used lately according to NVML.
    pub observed: Option<u32>,
    /// Whether NVML lists the process.
    #[serde(rename = "listed")]
    pub is_listed: bool,
    /// Whether the figures are about to change: the process is a zombie, or says that it is making a context.
    #[serde(rename = "in_between")]
    pub is_transient: bool,
    /// Whether the process is a zombie.
    pub has_exited: bool,
}

impl ContainerState {
    /// Returns whether the container requests files that the monitor keeps.
    #[must_use]
    pub fn requests_files(&self) -> bool {
        self.hami_cache.is_some() || self.trace_dir.is_some()
    }

    /// Returns the name to display.
    #[must_use]
    pub fn name(&self) -> String {
        display_name([&self.namespace, &self.pod, &self.container], self.engine_name.as_deref(), &self.id)
    }

    /// Returns whether the display name is not the ID.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.container.is_some() || self.pod.is_some() || self.engine_name.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_have_no_hidden_characters() {
        let state =
            ContainerState { pod: Some("a\x1b[2J\u{202e}".to_owned()), container: Some("b".to_owned()), ..ContainerState::default() };
        assert_eq!(state.name(), "a?[2J?/b");
    }
}
