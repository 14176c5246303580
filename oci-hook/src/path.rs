//! Paths that are written in a bundle or on a command line.

use std::path::{Path, PathBuf};

/// Makes `path` absolute from `base`.
#[must_use]
pub fn absolute(base: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { base.join(path) }
}

/// A container path without repeated slashes, `.` and `..`, and from the root.
#[must_use]
pub fn plain(path: &str) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => {
                plain.pop();
            }
            step => plain.push(step),
        }
    }
    plain
}
