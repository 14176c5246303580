//! Switches a container's tracing on and off.

use std::io;

use vgpu_oci_hook::state::{REGION, shared};
use vgpu_region::limits::LimitsPage;
use vgpu_region::trace::FILE_SIZE;

use crate::change::{Error, leased, open_page};
use crate::container::Container;
use crate::shared_file::{is_leased, open_for_writing};

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
        make_room(container)?;
        let page = open_page(container)?;
        page.set_traced(true);
        Ok(Self { page, is_permanent: !page.trace_dir().is_empty() })
    }
}

/// Makes room for the rings in the container's region.
fn make_room(container: &Container) -> Result<(), Error> {
    let region = container.dir.join(REGION);
    let failed = |source: io::Error| {
        if is_leased(&source) { leased(container, region.clone()) } else { Error::File { path: region.clone(), source } }
    };
    shared::make_room_for_rings(&container.dir).map_err(|error| failed(io::Error::other(error)))?;
    let file = open_for_writing(&region).map_err(failed)?;
    // Never shortened, as the container's processes have it mapped.
    let length = file.metadata().map_err(failed)?.len();
    if length < FILE_SIZE { file.set_len(FILE_SIZE).map_err(failed) } else { Ok(()) }
}

impl Drop for TraceSession {
    fn drop(&mut self) {
        if !self.is_permanent {
            self.page.set_traced(false);
        }
    }
}
