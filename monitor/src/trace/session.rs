//! Switches a container's tracing on and off.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;

use vgpu_oci_hook::state::{LIMITS, REGION};
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_region::trace::FILE_SIZE;

use crate::change::Error;
use crate::container::Container;

/// Active tracing of a container. Dropping it stops the tracing, unless the container itself requested traces.
#[derive(Debug)]
pub struct TraceSession {
    page: &'static LimitsPage,
    is_permanent: bool,
}

impl TraceSession {
    /// Starts tracing.
    ///
    /// # Errors
    /// The container's files cannot be changed.
    pub fn start(container: &Container) -> Result<Self, Error> {
        let region = container.dir.join(REGION);
        let grow = || {
            let file = OpenOptions::new().write(true).open(&region)?;
            // Never shortened, as the container's processes have it mapped.
            if file.metadata()?.len() < FILE_SIZE { file.set_len(FILE_SIZE) } else { Ok(()) }
        };
        grow().map_err(|source| Error::File { path: region.clone(), source })?;
        let path = container.dir.join(LIMITS);
        let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        let page = map::limits_for_change(&name).map_err(|why| Error::Page { path, why })?;
        page.set_traced(true);
        Ok(Self { page, is_permanent: !page.trace_dir().is_empty() })
    }
}

impl Drop for TraceSession {
    fn drop(&mut self) {
        if !self.is_permanent {
            self.page.set_traced(false);
        }
    }
}
