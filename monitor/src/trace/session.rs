//! Turning a container's tracing on and off.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;

use vgpu_oci_hook::state::{LIMITS, REGION};
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::trace::FILE_SIZE;

use crate::change::Error;
use crate::container::Container;

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
