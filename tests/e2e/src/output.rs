//! The output of the test programs.

use serde::Deserialize;

/// The output of `fill`, which allocates until it is refused. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Fill {
    /// The allocation method.
    pub api: String,
    /// Memory obtained.
    pub obtained: u64,
    /// CUDA's name of the error that ended it.
    pub error: String,
    /// Free memory by CUDA.
    #[serde(default)]
    pub free: u64,
    /// Total memory by CUDA.
    #[serde(default)]
    pub total: u64,
    /// Total memory by NVML.
    #[serde(default)]
    pub nvml_total: Option<u64>,
    /// Used memory by NVML.
    #[serde(default)]
    pub nvml_used: Option<u64>,
    /// Memory of the process before the first allocation, by NVML.
    #[serde(default)]
    pub context: Option<u64>,
    /// The message of a framework about the refusal.
    #[serde(default)]
    pub message: Option<String>,
}

impl Fill {
    /// Reads the output from the stdout of a container's command.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    #[track_caller]
    pub fn of(stdout: &str) -> Self {
        let line = stdout.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no answer in {stdout:?}"));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

/// The output of `oversub`. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Oversub {
    /// Memory obtained of what was needed.
    pub obtained: u64,
    /// The part of it that was spilled to the host.
    pub elsewhere: u64,
    /// Number of words with wrong contents.
    pub wrong: u64,
    /// Memory obtained when allocating until refused.
    pub most: u64,
    /// CUDA's name of the error that ended it.
    pub refused: String,
    /// Total memory by CUDA.
    pub total: u64,
}

impl Oversub {
    /// Reads the output from the stdout of a container's command.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(stdout: &str) -> Result<Self, String> {
        let line = stdout.lines().find(|line| line.starts_with('{')).ok_or_else(|| format!("no answer in {stdout:?}"))?;
        serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))
    }
}

/// The output of `held` for one GPU. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Held {
    /// The GPU's name.
    pub name: String,
    /// Total memory by NVML.
    pub total: u64,
    /// The processes that NVML lists, with the memory of each.
    pub processes: Vec<(u32, u64)>,
    /// The most that all processes held together in any sample.
    pub peak: u64,
    /// Number of samples.
    pub samples: u64,
}
