//! What becomes of the folders of containers that are gone.

use std::fs;
use std::path::{Path, PathBuf};

use super::{State, TAKEN, UNFINISHED, read_record};
use crate::error::{Error, Result};
use crate::process::Process;

impl State {
    /// Removes a folder of a container that is gone. It is taken first, as every such folder is: nobody may still be removing what is in
    /// it when another has made it a new container's.
    pub(super) fn discard(&self, dir: &Path) -> Result<()> {
        let taken = self.named(TAKEN, Process::this());
        match fs::rename(dir, &taken) {
            Ok(()) => remove(&taken),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(why) => Err(Error::io("remove", dir)(why)),
        }
    }

    /// Removes the folders of containers that no longer exist. What cannot be read or removed is left for another time.
    pub fn sweep(&self) {
        if let Some(spare) = self.clear() {
            let _ = remove(&spare);
        }
    }

    /// As [`State::sweep`], but one folder is only emptied, and stays for a new container: on a disk that is told what it no longer holds,
    /// a folder's end waits for that, for milliseconds if the disk is busy.
    pub(super) fn clear(&self) -> Option<PathBuf> {
        let mut spare = None;
        for entry in fs::read_dir(self.containers()).ok()?.flatten() {
            let name = entry.file_name();
            let in_hand = name.to_str().and_then(|name| [UNFINISHED, TAKEN].iter().find_map(|what| name.strip_prefix(what)));
            let dead = match in_hand {
                Some(creator) => !creator_of(creator).is_some_and(Process::is_alive),
                None => read_record(&entry.path()).is_some_and(|record| !record.is_live()),
            };
            if dead {
                // An empty folder that has the name gives way.
                let taken = spare.get_or_insert_with(|| self.named(TAKEN, Process::this()));
                if fs::rename(entry.path(), &taken).is_ok() && empty(taken).is_err() {
                    let _ = remove(taken);
                }
            }
        }
        spare
    }
}

fn creator_of(name: &str) -> Option<Process> {
    let (pid, start_time) = name.split_once('.')?;
    Some(Process { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}

/// Removes a container's folder, if it is there.
///
/// # Errors
/// It cannot be removed.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", dir)(why)),
        _ => Ok(()),
    }
}

/// Removes the files in a folder.
fn empty(dir: &Path) -> std::io::Result<()> {
    fs::read_dir(dir)?.try_for_each(|entry| fs::remove_file(entry?.path()))
}
