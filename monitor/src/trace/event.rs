//! One recorded event.

use std::sync::Arc;

use vgpu_region::trace::{Kind, What};

/// One thing that a process did. All of it is the tenant's own word.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// PID in the process's own namespace.
    pub pid: u32,
    /// Its thread's number there.
    pub thread: u32,
    /// What it is about.
    pub kind: Kind,
    /// Flags and context.
    pub what: What,
    /// The driver's function; empty for what is none.
    pub call: Arc<str>,
    /// A kernel's name, or the process's; empty where it is not known.
    pub name: Arc<str>,
    /// When it began on the host, in nanoseconds since 1970.
    pub begin: u64,
    /// How long it took there, in nanoseconds.
    pub took: u64,
    /// A stream, or an address.
    pub place: u64,
    /// How much, or how many: see [`Kind`].
    pub amount: u64,
    /// When it began on the GPU, by the host's clock, and how long it took there.
    pub gpu: Option<(u64, u64)>,
}

impl Event {
    /// Whether one of the flags is set.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.what.flags & flag != 0
    }
}
