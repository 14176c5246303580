//! Traces of what a container's processes do on the GPU.
//!
//! The processes write into rings in their region's file ([`vgpu_region::trace`]); [`rings`] copies out of them, `clock` puts the GPU's
//! times on the host's clock, [`chrome`] writes the Trace Event Format that Perfetto and Chrome open, [`alnair`] Alnair's two logs.
//! [`log_dir`] keeps the files of the containers that asked for them when they were made.

pub mod alnair;
pub mod chrome;
mod clock;
pub mod log_dir;
pub mod rings;

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use vgpu_oci_hook::state::{LIMITS, REGION};
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::trace::{FILE_SIZE, Kind, What};

use crate::change::Error;
use crate::container::Container;

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

/// A container that is being traced. When this goes, it is not any more, unless it asked for that itself.
#[derive(Debug)]
pub struct TraceSession {
    page: &'static LimitsPage,
    stays: bool,
}

impl TraceSession {
    /// Turns tracing on.
    ///
    /// # Errors
    /// The container's files cannot be changed.
    pub fn start(container: &Container) -> Result<Self, Error> {
        let region = container.place.join(REGION);
        let grow = || {
            let file = OpenOptions::new().write(true).open(&region)?;
            // Never shorter: what its processes have mapped has to stay.
            if file.metadata()?.len() < FILE_SIZE { file.set_len(FILE_SIZE) } else { Ok(()) }
        };
        grow().map_err(|source| Error::File { path: region.clone(), source })?;
        let path = container.place.join(LIMITS);
        let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        let page = map::limits_for_change(&name).map_err(|why| Error::Page { path, why })?;
        page.set_traced(true);
        Ok(Self { page, stays: !page.trace_dir().is_empty() })
    }
}

impl Drop for TraceSession {
    fn drop(&mut self) {
        if !self.stays {
            self.page.set_traced(false);
        }
    }
}

#[cfg(test)]
mod tests;
