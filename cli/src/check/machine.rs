//! The machine under check: its files and programs below a root folder, which tests replace.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root folder of the files, and search path of the programs.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    path: OsString,
}

impl Machine {
    /// Returns the machine that this program runs on.
    pub fn local() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders: Vec<_> = std::env::split_paths(&path).collect();
        // An ordinary user's PATH lacks the daemons' folders, and vgpu-runtime's may lack others.
        folders.extend(std::env::split_paths(vgpu_oci_hook::process::DEFAULT_PATH));
        Self { root: "/".into(), path: std::env::join_paths(folders).unwrap_or(path) }
    }

    /// Returns a machine below `root`, with its programs in `root/bin`.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), path: root.join("bin").into() }
    }

    /// Returns where an absolute path of the machine is found.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Reads the text of a file; `None` if that fails.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.path(absolute)).ok()
    }

    /// Finds an executable program by name or absolute path.
    pub fn program(&self, name: impl AsRef<Path>) -> Option<PathBuf> {
        let name = name.as_ref();
        let is_executable =
            |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if name.is_absolute() {
            return Some(self.path(name)).filter(is_executable);
        }
        std::env::split_paths(&self.path).map(|folder| folder.join(name)).find(is_executable)
    }

    /// Returns the first word of `PROGRAM --version` that looks like a version: digits and a dot.
    pub fn version(&self, program: &Path) -> Option<String> {
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split([' ', ',', '\n'])
            .map(|word| word.trim_start_matches('v'))
            .find(|word| version_numbers(word).len() > 1)
            .map(str::to_owned)
    }
}

/// Returns the numbers at the start of a version: 6, 1 and 0 of `6.1.0-18-amd64`.
pub(super) fn version_numbers(version: &str) -> Vec<u32> {
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
    fn version_numbers_end_at_the_first_other_text() {
        assert_eq!(version_numbers("6.1.0-18-amd64"), [6, 1, 0]);
        assert_eq!(version_numbers("20.10.24+dfsg1"), [20, 10, 24]);
        assert_eq!(version_numbers("1.6.20~ds1"), [1, 6, 20]);
        assert!(version_numbers("version").is_empty());
        assert!(version_numbers("6.18-rc1") > vec![6, 6]);
    }
}
