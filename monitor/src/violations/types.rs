//! Violations, and what identifies their subjects.

use crate::snapshot::GpuProcess;

/// Container directory, its creation time, and GPU UUID.
pub(super) type Key = (String, u64, String);
/// PID and start time.
pub(super) type Identity = (u32, u64);

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The container's processes hold more memory than allowed.
    Over,
    /// A process uses the GPU without an entry in the container's account, or holds far more than it has charged.
    Bypass,
    /// The container's processes use more GPU time than allowed.
    OverTime,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Over, Self::Bypass, Self::OverTime];

    /// Returns the kind's label in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Over => "over_limit",
            Self::Bypass => "bypass",
            Self::OverTime => "over_time",
        }
    }
}

/// Persistent violation.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Container ID.
    pub id: String,
    /// Name of the container's directory in the state directory.
    pub dir_name: String,
    /// Display name of the container.
    pub name: String,
    /// UUID of the GPU.
    pub uuid: String,
    /// Kind of violation.
    pub kind: Kind,
    /// Memory that the container's processes hold on the GPU, in bytes.
    pub held: u64,
    /// Allowed memory in bytes. `None` without a memory limit.
    pub allowed: Option<u64>,
    /// Percent of the GPU's time that the container's processes used lately, and its limit in percent. `None` without a compute limit.
    pub time: Option<(f64, u32)>,
    /// Processes to end, in this order.
    pub offenders: Vec<Offender>,
    /// Whether this is the first report of the violation.
    pub is_new: bool,
    /// Whether the grace time is over.
    pub is_due: bool,
}

/// Process that causes a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// PID on the host.
    pub pid: u32,
    /// Start time in clock ticks since boot. With the PID, the process's identity.
    pub start_time: u64,
    /// Program name.
    pub name: String,
    /// Held memory in bytes. `None` if NVML does not report it.
    pub held: Option<u64>,
}

impl Violation {
    /// Returns the violation with another allowance of memory, in bytes.
    pub(super) fn allowing(self, allowed: Option<u64>) -> Self {
        Self { allowed, ..self }
    }
}

/// Returns a process as an offender. `None` if NVML does not list it.
pub(super) fn offender(process: &GpuProcess) -> Option<Offender> {
    Some(Offender { pid: process.pid?, start_time: process.start_time, name: process.name.clone(), held: process.held })
}
