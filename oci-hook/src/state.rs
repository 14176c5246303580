//! The state directory: for each limited container a directory with the files that are mounted into it, and its record.
//!
//! The file that the container may write, its region, is on a file system of its own ([`shared`]). Only root gets through a container's
//! directory, and where the container has a user namespace also the group of its root, as which vgpu's hook runs.
//!
//! A directory is written under a temporary name and renamed when complete, so a crash leaves nothing that looks like a container.
//! `delete` through vgpu-runtime removes it. What remains of failed creates and of containers that ended otherwise is swept by the next
//! creates, each of which looks at a few: a container is dead once its creator has ended and the low-level runtime has no entry for it. A
//! process renames a directory before it removes it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use vgpu_region::limits::LimitsPage;

use crate::error::{Error, Result};
use crate::state::containers::{Containers, read_record};

mod containers;
pub mod shared;

pub use crate::record::{CONTAINERS, LIMITS, PRELOAD, Program, RECORD, REGION, Record, SHARED};
pub use containers::remove;
pub use shared::Access;

/// Longest container id.
const MAX_ID_LEN: usize = 200;

/// Checks a container id before it becomes part of a path. The accepted characters are those of runc.
///
/// # Errors
/// The id is empty, longer than 200 bytes, `.` or `..`, or has other characters in it.
pub fn check_id(id: &str) -> Result<&str> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    if id.is_empty() || id.len() > MAX_ID_LEN || id == "." || id == ".." || !id.bytes().all(is_allowed) {
        return Err(Error::refused("container id", id, "1 to 200 letters, digits, _, +, - and . (but not . or ..)"));
    }
    Ok(id)
}

/// What a container's directory gets besides its record and limits.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// The content of `/etc/ld.so.preload`, if that is used.
    pub preload: Option<&'a str>,
    /// Who gets through the directory.
    pub access: Access,
}

/// The state directory.
#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
    containers: Containers,
}

impl State {
    /// Returns the state in this directory, which need not exist yet.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), containers: Containers { path: dir.join(CONTAINERS) } }
    }

    /// Returns the path of the state directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the names that a container's directory may have. Two runtimes, or two roots of one, may have a container of the same id.
    fn candidate_dirs(&self, id: &str, bundle: &Path) -> [PathBuf; 2] {
        // FNV-1a: the name must not change between versions.
        let bytes = bundle.as_os_str().as_bytes().iter();
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        [self.containers.path.join(id), self.containers.path.join(format!("{id}@{hash:016x}"))]
    }

    /// Finds the directory and the record of a container.
    #[must_use]
    pub fn find(&self, id: &str, bundle: &Path) -> Option<(PathBuf, Record)> {
        check_id(id).ok()?;
        let mut found = self.candidate_dirs(id, bundle).into_iter().filter_map(|dir| Some((read_record(&dir)?, dir)));
        found.find(|(record, _)| record.id == id && record.bundle == bundle).map(|(record, dir)| (dir, record))
    }

    /// Returns the path for a new container's directory, and removes what a dead container of the same id left there.
    ///
    /// # Errors
    /// The id is invalid, or an existing container has it.
    pub fn reserve(&self, id: &str, bundle: &Path) -> Result<PathBuf> {
        let in_use = || Error::refused("container id", id, "an id that no existing container has");
        check_id(id)?;
        for dir in self.candidate_dirs(id, bundle) {
            match read_record(&dir) {
                Some(record) if record.is_live() && record.bundle == bundle => return Err(in_use()),
                Some(record) if record.is_live() => {}
                _ => {
                    self.containers.discard(&dir)?;
                    return Ok(dir);
                }
            }
        }
        Err(in_use())
    }

    /// Writes a container's directory at the path that [`State::reserve`] returned, and removes the directories of some dead containers.
    ///
    /// # Errors
    /// The state directory cannot be written, or the region's file system cannot be mounted.
    pub fn create(&self, dir: &Path, record: &Record, page: &LimitsPage, files: Files<'_>) -> Result<()> {
        for parent in [&self.dir, &self.containers.path] {
            DirBuilder::new().recursive(true).mode(0o711).create(parent).map_err(Error::io("create", parent))?;
        }
        let unfinished = self.containers.unfinished(record.creator);
        remove(&unfinished)?;
        let spare = self.containers.sweep_keeping_one();
        let written = create_dir(&unfinished, spare.as_deref(), files.access)
            .and_then(|()| write_files(&unfinished, record, page, files))
            .and_then(|()| fs::rename(&unfinished, dir).map_err(Error::io("create", dir)));
        if written.is_err() {
            let _ = remove(&unfinished);
        }
        written
    }

    /// Removes the directory of a container, if it exists.
    ///
    /// # Errors
    /// The directory exists and cannot be removed.
    pub fn delete(&self, id: &str, bundle: &Path) -> Result<()> {
        match self.find(id, bundle) {
            Some((dir, _)) => self.containers.discard(&dir),
            None => Ok(()),
        }
    }

    /// Removes the directories of the dead containers of this id, in any bundle, and returns their bundles. Directories that cannot be
    /// read or removed are left for a later sweep.
    pub fn delete_dead(&self, id: &str) -> Vec<PathBuf> {
        let dirs = self.named(id).map(|name| self.containers.path.join(name));
        let dead = dirs.filter_map(|dir| Some((read_record(&dir).filter(|record| !record.is_live())?.bundle, dir)));
        dead.filter(|(_, dir)| self.containers.discard(dir).is_ok()).map(|(bundle, _)| bundle).collect()
    }

    /// Removes the directories of some dead containers. Directories that cannot be read or removed are left for a later sweep.
    pub fn sweep(&self) {
        if let Some(spare) = self.containers.sweep_keeping_one() {
            let _ = remove(&spare);
        }
    }

    /// Returns whether a container of this id may have a directory, in any bundle.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.named(id).next().is_some()
    }

    /// Returns the names of the directories of containers of this id.
    fn named(&self, id: &str) -> impl Iterator<Item = String> {
        let is_named = move |name: &String| name.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'));
        self.containers.names().filter(move |name| check_id(id).is_ok() && is_named(name))
    }

    /// Returns the directories and records of the containers that exist.
    pub fn live(&self) -> impl Iterator<Item = (PathBuf, Record)> {
        self.containers.live()
    }
}

/// Creates an empty directory at `dir`, from the empty directory `spare` if there is one.
fn create_dir(dir: &Path, spare: Option<&Path>, access: Access) -> Result<()> {
    if spare.is_none_or(|spare| fs::rename(spare, dir).is_err()) {
        DirBuilder::new().mode(0o700).create(dir).map_err(Error::io("create", dir))?;
    }
    access.apply(dir)
}

fn write_files(dir: &Path, record: &Record, page: &LimitsPage, files: Files<'_>) -> Result<()> {
    let record = serde_json::to_vec_pretty(record).map_err(|why| Error::Other(format!("cannot write the container's record: {why}")))?;
    write(&dir.join(RECORD), 0o644, &record)?;
    write(&dir.join(LIMITS), 0o444, page.as_bytes())?;
    shared::create(dir, files.access, page.is_traced())?;
    if let Some(list) = files.preload {
        write(&dir.join(PRELOAD), 0o444, list.as_bytes())?;
    }
    Ok(())
}

fn write(path: &Path, mode: u32, contents: &[u8]) -> Result<()> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(contents)?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    };
    write().map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests;
