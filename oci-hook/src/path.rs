//! Paths in bundles and on command lines.

use std::path::{Component, Path, PathBuf};

/// Resolves `path` against `base`.
#[must_use]
pub fn absolute(base: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { base.join(path) }
}

/// Normalizes a container path lexically: absolute, without repeated slashes, `.` and `..`.
#[must_use]
pub fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => drop(normalized.pop()),
            Component::Normal(name) => normalized.push(name),
        }
    }
    normalized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_paths_are_normalized() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("a/./b", "/a/b"),
            ("./a", "/a"),
            ("/a/../b", "/b"),
            ("/../../a", "/a"),
            ("/a/b/..", "/a"),
        ] {
            assert_eq!(normalize(Path::new(path)), Path::new(expected), "{path:?}");
        }
    }
}
