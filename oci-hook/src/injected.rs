//! Host files that are mounted into limited containers.

use std::path::PathBuf;

/// The driver's libraries that programs call.
pub const DRIVER_LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// A file or directory that is mounted into the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedFile {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the container; for a front library, its file name.
    pub destination: &'static str,
    /// Whether the container may write it.
    pub is_writable: bool,
    /// Whether programs may map it as code.
    pub is_executable: bool,
    /// Whether it is a directory.
    pub is_dir: bool,
}
