//! The directory that has one directory for each limited container: its entries, and the removal of dead ones.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::{Error, Result};
use crate::process::Process;
use crate::record::{RECORD, Record, SHARED};
use crate::state::shared;

/// Prefix of directories that a process is still writing.
const UNFINISHED: &str = ".new.";
/// Prefix of directories that a process has claimed from a dead container.
const CLAIMED: &str = ".old.";

/// Number of containers that one sweep looks at. Every create sweeps, and must not take the longer the more containers there are.
const LOOKED_AT: usize = 16;

/// The directory of all containers' directories.
#[derive(Clone, Debug)]
pub(super) struct Containers {
    /// Its path, which need not exist yet.
    pub(super) path: PathBuf,
}

impl Containers {
    /// Returns the name under which `process` writes a new container's directory.
    pub(super) fn unfinished(&self, process: Process) -> PathBuf {
        self.name_for(UNFINISHED, process)
    }

    fn name_for(&self, prefix: &str, process: Process) -> PathBuf {
        self.path.join(format!("{prefix}{}.{}", process.pid, process.start_time))
    }

    /// Returns the names of all entries that are UTF-8, as every container id is.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    }

    /// Returns the directories and records of the containers that exist.
    pub(super) fn live(&self) -> impl Iterator<Item = (PathBuf, Record)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let complete = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        complete.filter_map(|entry| Some((entry.path(), read_record(&entry.path())?))).filter(|(_, record)| record.is_live())
    }

    /// Removes the directory of a dead container. It is renamed first, as every such directory is: otherwise this process could still
    /// be deleting files in it after another process has reused it for a new container.
    pub(super) fn discard(&self, dir: &Path) -> Result<()> {
        let claimed = self.name_for(CLAIMED, Process::this());
        match fs::rename(dir, &claimed) {
            Ok(()) => remove(&claimed),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(why) => Err(Error::io("remove", dir)(why)),
        }
    }

    /// Returns what other processes have claimed or left unfinished, and some of the containers' directories, others each time.
    fn some_entries(&self) -> Vec<DirEntry> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let (mut containers, mut some): (Vec<_>, Vec<_>) =
            entries.partition(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let nanoseconds = UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos() as usize);
        let start = nanoseconds.checked_rem(containers.len()).unwrap_or(0);
        containers.rotate_left(start);
        some.extend(containers.into_iter().take(LOOKED_AT));
        some
    }

    /// Empties the directories of dead containers and removes all but one, which it returns for reuse. On a file system mounted with
    /// `discard`, removing a directory waits for the TRIM, which takes milliseconds on a busy disk. Directories that cannot be read or
    /// removed, and those that are not looked at, are left for a later sweep.
    pub(super) fn sweep_keeping_one(&self) -> Option<PathBuf> {
        let mut spare = None;
        for entry in self.some_entries() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| [UNFINISHED, CLAIMED].iter().find_map(|prefix| name.strip_prefix(prefix)));
            let is_dead = match owner {
                Some(owner) => !parse_owner(owner).is_some_and(Process::is_alive),
                None => read_record(&entry.path()).is_some_and(|record| !record.is_live()),
            };
            if is_dead {
                // rename(2) replaces an empty directory that already has the name.
                let claimed = spare.get_or_insert_with(|| self.name_for(CLAIMED, Process::this()));
                if fs::rename(entry.path(), &claimed).is_ok() && empty(claimed).is_err() {
                    let _ = remove(claimed);
                }
            }
        }
        spare
    }
}

/// Reads the record in a container's directory. `None` if it is absent or damaged.
pub(super) fn read_record(dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()
}

fn parse_owner(name: &str) -> Option<Process> {
    let (pid, start_time) = name.split_once('.')?;
    Some(Process { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}

/// Removes a container's directory if it exists.
///
/// # Errors
/// The directory cannot be removed.
pub fn remove(dir: &Path) -> Result<()> {
    release(dir);
    match fs::remove_dir_all(dir) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", dir)(why)),
        _ => Ok(()),
    }
}

/// Releases what a container's directory refers to outside of it: its file system, and the cgroup of a program without a container.
fn release(dir: &Path) {
    shared::unmount_in(dir);
    // The kernel keeps a cgroup in which processes are left.
    if let Some(cgroup) = read_record(dir).and_then(|record| record.program?.cgroup) {
        let _ = fs::remove_dir(cgroup);
    }
}

/// Empties a container's directory, which must have no other directory in it than the one for its file system.
fn empty(dir: &Path) -> std::io::Result<()> {
    release(dir);
    fs::read_dir(dir)?.try_for_each(|entry| {
        let path = entry?.path();
        if path.ends_with(SHARED) { fs::remove_dir(path) } else { fs::remove_file(path) }
    })
}
