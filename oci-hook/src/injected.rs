//! Files of the host that are mounted into limited containers.

use std::path::PathBuf;

/// The driver's libraries that programs call.
pub const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// One file or folder that is mounted into the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// On the host.
    pub source: PathBuf,
    /// In the container.
    pub inside: &'static str,
    /// Whether the container may write it.
    pub writable: bool,
    /// Whether programs may map it as code.
    pub code: bool,
    /// Whether it is a folder.
    pub folder: bool,
}
