//! Options of a registration.

use std::path::PathBuf;

/// Name under which every runtime knows vgpu: `docker run --runtime vgpu`, the handler of a RuntimeClass.
pub const HANDLER: &str = "vgpu";

/// Options of a registration, the same for every runtime.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The runtime's main configuration file, absolute.
    pub config: PathBuf,
    /// The program to register as a runtime, absolute.
    pub runtime: String,
    /// The hook to register instead of a runtime, absolute.
    pub hook: Option<String>,
    /// Whether vgpu becomes the default runtime.
    pub default: bool,
}
