//! The machine that is looked at: its files below a root, so that tests can make one up, and its programs.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where files and programs are.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    path: OsString,
}

impl Machine {
    /// The one we run on.
    pub fn this() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<_> = std::env::split_paths(&path).collect();
        // A plain user's PATH lacks the folders of the daemons.
        folders.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
        Self { root: "/".into(), path: std::env::join_paths(folders).unwrap_or(path) }
    }

    /// A made-up one whose only programs are in `root/bin`.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), path: root.join("bin").into() }
    }

    /// Where an absolute path of the machine is to be found.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The text of a file; `None` where it cannot be read.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.path(absolute)).ok()
    }

    /// A program by name or absolute path.
    pub fn program(&self, name: impl AsRef<Path>) -> Option<PathBuf> {
        let name = name.as_ref();
        let runs = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if name.is_absolute() {
            return Some(self.path(name)).filter(runs);
        }
        std::env::split_paths(&self.path).map(|folder| folder.join(name)).find(runs)
    }

    /// The first word of `PROGRAM --version` that is a version: digits and a dot.
    pub fn version(&self, program: &Path) -> Option<String> {
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split([' ', ',', '\n']).map(|word| word.trim_start_matches('v')).find(|word| leading(word).len() > 1).map(str::to_owned)
    }
}

/// The numbers that a version begins with: 6 and 1 of `6.1.0-18-amd64` come first.
pub(super) fn leading(version: &str) -> Vec<u32> {
    version
        .split('.')
        .map_while(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_far_as_they_are_numbers() {
        assert_eq!(leading("6.1.0-18-amd64"), [6, 1, 0]);
        assert_eq!(leading("20.10.24+dfsg1"), [20, 10, 24]);
        assert_eq!(leading("1.6.20~ds1"), [1, 6, 20]);
        assert!(leading("version").is_empty());
        assert!(leading("6.18-rc1") > vec![6, 6]);
    }
}
