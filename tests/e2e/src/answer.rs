//! What the test programs answer.

use serde::Deserialize;

/// What `fill` says when it has allocated until it was refused. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Fill {
    /// How it allocated.
    pub api: String,
    /// What it obtained.
    pub obtained: u64,
    /// CUDA's name for the refusal.
    pub error: String,
    /// What is left, by CUDA.
    #[serde(default)]
    pub free: u64,
    /// What there is, by CUDA.
    #[serde(default)]
    pub total: u64,
    /// What there is, by NVML.
    #[serde(default)]
    pub nvml_total: Option<u64>,
    /// What is used, by NVML.
    #[serde(default)]
    pub nvml_used: Option<u64>,
    /// What its process held before the first allocation, by NVML.
    #[serde(default)]
    pub context: Option<u64>,
    /// What a framework says to people about the refusal.
    #[serde(default)]
    pub message: Option<String>,
}

impl Fill {
    /// Reads the answer among what the container's command wrote on stdout.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    #[track_caller]
    pub fn of(stdout: &str) -> Self {
        let line = stdout.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no answer in {stdout:?}"));
        serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"))
    }
}

/// What `oversub` says when it has done its work. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Oversub {
    /// What it obtained of what it needed.
    pub obtained: u64,
    /// How much of that lies on the host although it was asked of the device.
    pub elsewhere: u64,
    /// How many words were not what they must be.
    pub wrong: u64,
    /// What it obtained when it took all there is.
    pub most: u64,
    /// CUDA's name for the refusal.
    pub refused: String,
    /// What there is, by CUDA.
    pub total: u64,
}

impl Oversub {
    /// Reads the answer among what the container's command wrote on stdout.
    ///
    /// # Errors
    /// There is none.
    pub fn of(stdout: &str) -> Result<Self, String> {
        let line = stdout.lines().find(|line| line.starts_with('{')).ok_or_else(|| format!("no answer in {stdout:?}"))?;
        serde_json::from_str(line).map_err(|why| format!("{why}: {line}"))
    }
}

/// What `held` says of a GPU. Amounts are in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Held {
    /// The GPU's name.
    pub name: String,
    /// What there is, by NVML.
    pub total: u64,
    /// What NVML says each process holds.
    pub processes: Vec<(u32, u64)>,
    /// The most that all of them held at any time that was looked at.
    pub peak: u64,
    /// How often it was looked at.
    pub samples: u64,
}
