//! Recorded event.

use std::sync::Arc;

use vgpu_region::trace::{Kind, What};

/// Recorded event of a process. All of it is the tenant's claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// PID in the process's own namespace.
    pub pid: u32,
    /// Thread ID in that namespace.
    pub thread: u32,
    /// Kind of event.
    pub kind: Kind,
    /// Flags and context.
    pub what: What,
    /// Driver function. Empty if the event is no call.
    pub call: Arc<str>,
    /// Name of the kernel or of the process. Empty if unknown.
    pub name: Arc<str>,
    /// Begin on the host in nanoseconds since 1970.
    pub begin_ns: u64,
    /// Duration on the host in nanoseconds.
    pub took_ns: u64,
    /// Stream or address.
    pub target: u64,
    /// Size or count, see [`Kind`].
    pub size: u64,
    /// Begin on the GPU by the host's clock, in nanoseconds since 1970, and duration on the GPU in nanoseconds.
    pub gpu: Option<(u64, u64)>,
}

impl Event {
    /// Returns whether one of the flags is set.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.what.flags & flag != 0
    }
}
