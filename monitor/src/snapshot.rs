//! Everything that is known at one moment: each GPU, each container, what it may have, says it has, and has.

use serde::Serialize;

/// One moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Seconds since 1970.
    pub time: f64,
    /// Why NVML tells nothing, if it does not.
    pub nvml_error: Option<String>,
    /// This machine's GPUs, in the order of their index.
    pub gpus: Vec<Gpu>,
    /// The containers that are held to limits, the oldest first.
    pub containers: Vec<ContainerState>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// All of its memory, in bytes.
    pub memory: u64,
    /// What is in use of it, in bytes; `None` where NVML does not tell.
    pub memory_used: Option<u64>,
    /// How busy it was, in percent; `None` where NVML does not tell.
    pub utilization: Option<u32>,
    /// Whether NVML told who is on it.
    pub processes_known: bool,
}

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContainerState {
    /// Its id.
    pub id: String,
    /// The name of its folder in the state directory: two runtimes may each have a container of the same id.
    pub place: String,
    /// Its name in its pod.
    pub container: Option<String>,
    /// Its pod's name.
    pub pod: Option<String>,
    /// Its pod's namespace.
    pub namespace: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// 0 goes before 1.
    pub priority: u32,
    /// How often its limits have been changed since.
    pub changes: u64,
    /// What is wrong with its account, if anything.
    pub damaged: Option<String>,
    /// Its GPUs, in the order in which it counts them.
    pub gpus: Vec<Share>,
    /// Its first process on the host, where known.
    pub init: Option<u32>,
    /// Where in it HAMi's monitor expects its file.
    pub hami_cache: Option<String>,
    /// Where in it its traces go.
    pub trace_dir: Option<String>,
}

/// One container's share of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// `GPU-…`.
    pub uuid: String,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// Compute limit in percent.
    pub cores: Option<u32>,
    /// Compute limit in percent while nobody else wants the GPU.
    pub cores_soft: Option<u32>,
    /// Memory charged to it, in bytes, by its own account.
    pub charged: u64,
    /// Of it: contexts, modules, stacks.
    pub overhead: u64,
    /// Of it: managed memory, which NVML does not list by process.
    pub managed: u64,
    /// Memory spilled to the host, in bytes.
    pub spilled: u64,
    /// Memory that NVML says its processes hold, in bytes; `None` where that cannot be told.
    pub held: Option<u64>,
    /// Requests for memory that the limit has refused.
    pub refused: u64,
    /// When the first one was, in seconds since 1970.
    pub first_refusal: Option<f64>,
    /// GPU time charged, in nanoseconds.
    pub used_ns: u64,
    /// Time that launches were held back, summed over threads, in nanoseconds.
    pub throttled_ns: u64,
    /// How often the arbiter has given or taken its turn.
    pub turn_changes: u64,
    /// Percent of the GPU's time since the last look: as charged where there is a compute limit, else what NVML says.
    pub utilization: Option<f64>,
    /// Percent of the time since the last look that launches were held back, summed over threads.
    pub throttled: Option<f64>,
    /// When its used GPU time was last seen to grow, in seconds since 1970.
    pub last_kernel: Option<f64>,
    /// Its processes on this GPU.
    pub processes: Vec<GpuProcess>,
}

/// A container's process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its PID on the host, where NVML lists it or it was found.
    pub pid: Option<u32>,
    /// Its PID in the container.
    pub inner: u32,
    /// When it started, in clock ticks since the machine did.
    pub started: u64,
    /// The name of its program.
    pub name: String,
    /// What it has charged, in bytes; `None` if the account does not know it.
    pub charged: Option<u64>,
    /// Of it: contexts, modules, stacks.
    pub overhead: u64,
    /// What NVML says it holds, in bytes; `None` where it does not list it.
    pub held: Option<u64>,
    /// Whether NVML lists it.
    pub listed: bool,
    /// Whether it has ended but for being waited for, or is making a context, so that figures are about to change.
    pub in_between: bool,
}

impl ContainerState {
    /// `namespace/pod/container`, as far as these are known, else the id; without anything that a terminal or a log would trip over.
    #[must_use]
    pub fn name(&self) -> String {
        let known: Vec<&str> = [&self.namespace, &self.pod, &self.container].into_iter().flatten().map(String::as_str).collect();
        let name = if known.is_empty() { self.id.clone() } else { known.join("/") };
        name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_fit_to_be_shown() {
        let state = ContainerState { pod: Some("a\x1b[2J\n".to_owned()), container: Some("b".to_owned()), ..ContainerState::default() };
        assert_eq!(state.name(), "a?[2J?/b");
    }
}
