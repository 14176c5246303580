//! What the host keeps for each limited container: a folder with the files that are mounted into it, and a record.
//!
//! A folder is made under another name and renamed when it is complete, so a crash leaves nothing that looks like a container.
//! A folder goes with `delete` through us. What a create left that failed later, or a container that ended otherwise, is swept by
//! the next create: it is known by its creator's end and by the low-level runtime no longer knowing the container. Whoever removes a
//! folder takes it first, by renaming it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_config::Limits;
use vgpu_region::limits::LimitsPage;
use vgpu_region::paths;

use crate::error::{Error, Result};
use crate::process::Process;

mod gone;

pub use gone::remove;

/// The folder of containers in the state directory.
pub const CONTAINERS: &str = "containers";
/// The limits page's file.
pub const LIMITS: &str = "limits";
/// The accounting region's file.
pub const REGION: &str = "region";
/// The merged list for the loader.
pub const PRELOAD: &str = "ld.so.preload";
/// The record's file.
pub const RECORD: &str = "container.json";

/// How the names of folders begin that a process is still writing,
const UNFINISHED: &str = ".new.";
/// and that it has taken from a container that is gone.
const TAKEN: &str = ".old.";

/// What the host side knows of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The container's id.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
    /// Its root file system on the host.
    pub rootfs: PathBuf,
    /// Its name in its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its pod's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its pod's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its pod's UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// What was decided for it.
    pub limits: Limits,
    /// The library's file that is mounted into it.
    pub library: PathBuf,
    /// Whether the loader's list is used.
    pub preload: bool,
    /// Whether the driver's libraries are replaced.
    pub replace: bool,
    /// Where the container's programs look for libraries first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub library_path: String,
    /// The low-level runtime, where we know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<PathBuf>,
    /// Folders in one of which that runtime has an entry for the container, as long as it exists.
    pub runtime_roots: Vec<PathBuf>,
    /// Who made this; by the runtime's exec that is the low-level runtime while it creates.
    pub creator: Process,
    /// The container's first process, where we know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Process>,
    /// When, in seconds since 1970.
    pub created: u64,
}

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

impl Record {
    /// What is mounted into the container, whose folder on the host is `place`.
    #[must_use]
    pub fn files(&self, place: &Path) -> Vec<Mounted> {
        let own = |name, inside, writable| Mounted { source: place.join(name), inside, writable, code: false, folder: false };
        let mut files = vec![
            Mounted { source: self.library.clone(), inside: paths::LIBRARY, writable: false, code: true, folder: false },
            own(LIMITS, paths::LIMITS, false),
            own(REGION, paths::REGION, true),
        ];
        if self.preload {
            files.push(own(PRELOAD, paths::LD_SO_PRELOAD, false));
        }
        if let Some(mps) = &self.limits.mps {
            // Clients open the pipes for writing.
            files.push(Mounted { source: mps.pipes.clone(), inside: paths::MPS, writable: true, code: false, folder: true });
        }
        files
    }

    /// The files that take the place of the driver's libraries, if that is wanted: each needs our library and the driver's own, and has
    /// nothing in it itself. They lie beside our library, in the folder `front`.
    #[must_use]
    pub fn fronts(&self) -> Vec<Mounted> {
        let front = |inside| {
            let source = self.library.with_file_name("front").join(inside);
            Mounted { source, inside, writable: false, code: true, folder: false }
        };
        if self.replace { crate::driver::LIBRARIES.map(front).to_vec() } else { Vec::new() }
    }

    /// Whether the container exists, or is still being made.
    #[must_use]
    pub fn is_live(&self) -> bool {
        // What costs least first: every create asks this of every container.
        self.runtime_roots.iter().any(|root| root.join(&self.id).exists())
            || self.creator.is_alive()
            || self.init.is_some_and(Process::is_alive)
    }
}

/// Checks a container's id before any path is made of it. These are the letters that runc takes.
///
/// # Errors
/// It is empty, too long, `.` or `..`, or has other letters in it.
pub fn check_id(id: &str) -> Result<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    if id.is_empty() || id.len() > 200 || id == "." || id == ".." || !id.bytes().all(plain) {
        return Err(Error::refused("container id", id, "1 to 200 letters, digits, _, +, - and . (but not . or ..)"));
    }
    Ok(id)
}

/// The state directory.
#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
}

impl State {
    /// The state in this directory, which need not exist yet.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The state directory itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn containers(&self) -> PathBuf {
        self.dir.join(CONTAINERS)
    }

    /// The names that a container's folder may have. Two runtimes, or two roots of one, may each have a container of the same id.
    fn names(&self, id: &str, bundle: &Path) -> [PathBuf; 2] {
        use std::os::unix::ffi::OsStrExt;
        let hash = bundle.as_os_str().as_bytes().iter();
        let hash = hash.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let containers = self.containers();
        [containers.join(id), containers.join(format!("{id}@{hash:016x}"))]
    }

    /// The folder and the record of a container.
    #[must_use]
    pub fn find(&self, id: &str, bundle: &Path) -> Option<(PathBuf, Record)> {
        check_id(id).ok()?;
        let mut found = self.names(id, bundle).into_iter().filter_map(|dir| Some((read_record(&dir)?, dir)));
        found.find(|(record, _)| record.id == id && record.bundle == bundle).map(|(record, dir)| (dir, record))
    }

    /// Where the folder of a new container is going to be. What a dead one of the same id left there is removed.
    ///
    /// # Errors
    /// The id is not one, or a living container has it.
    pub fn place(&self, id: &str, bundle: &Path) -> Result<PathBuf> {
        check_id(id)?;
        for dir in self.names(id, bundle) {
            match read_record(&dir) {
                Some(record) if record.is_live() && record.bundle == bundle => {
                    return Err(Error::refused("container id", id, "one that no existing container has"));
                }
                Some(record) if record.is_live() => {}
                _ => {
                    self.discard(&dir)?;
                    return Ok(dir);
                }
            }
        }
        Err(Error::refused("container id", id, "one that no existing container has"))
    }

    /// Writes the folder of a container at the place that [`State::place`] gave, and removes those of containers that no longer exist.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn create(&self, place: &Path, record: &Record, page: &LimitsPage, preload: Option<&str>) -> Result<()> {
        for dir in [&self.dir, &self.containers()] {
            match DirBuilder::new().recursive(true).mode(0o711).create(dir) {
                Ok(()) => {}
                Err(why) => return Err(Error::io("make", dir)(why)),
            }
        }
        let unfinished = self.named(UNFINISHED, record.creator);
        remove(&unfinished)?;
        let spare = self.clear();
        let written = folder(&unfinished, spare.as_deref())
            .and_then(|()| write_all(&unfinished, record, page, preload))
            .and_then(|()| fs::rename(&unfinished, place).map_err(Error::io("make", place)));
        if written.is_err() {
            let _ = remove(&unfinished);
        }
        written
    }

    /// Removes the folder of a container that is gone.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    pub fn delete(&self, id: &str, bundle: &Path) -> Result<()> {
        match self.find(id, bundle) {
            Some((dir, _)) => self.discard(&dir),
            None => Ok(()),
        }
    }

    /// A name for what `process` has in hand.
    fn named(&self, what: &str, process: Process) -> PathBuf {
        self.containers().join(format!("{what}{}.{}", process.pid, process.start_time))
    }

    /// Whether there may be a folder of a container of this id.
    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        let Ok(entries) = fs::read_dir(self.containers()) else { return false };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        check_id(id).is_ok()
            && names.into_iter().any(|name| name.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('@')))
    }

    /// The folders and records of the containers that exist.
    pub fn living(&self) -> impl Iterator<Item = (PathBuf, Record)> {
        let entries = fs::read_dir(self.containers()).into_iter().flatten().flatten();
        let complete = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        complete.filter_map(|entry| Some((entry.path(), read_record(&entry.path())?))).filter(|(_, record)| record.is_live())
    }
}

fn read_record(dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()
}

/// Makes an empty folder at `dir`, of `spare` if that is there.
fn folder(dir: &Path, spare: Option<&Path>) -> Result<()> {
    if spare.is_none_or(|spare| fs::rename(spare, dir).is_err()) {
        DirBuilder::new().mode(0o711).create(dir).map_err(Error::io("make", dir))?;
    }
    // Folder modes are cut by the caller's umask; the container's processes have to get through.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).map_err(Error::io("make", dir))
}

fn write_all(dir: &Path, record: &Record, page: &LimitsPage, preload: Option<&str>) -> Result<()> {
    let record = serde_json::to_vec_pretty(record).map_err(|why| Error::Sentence(format!("cannot write the container's record: {why}")))?;
    write(&dir.join(RECORD), 0o644, &record, None)?;
    write(&dir.join(LIMITS), 0o444, page.as_bytes(), None)?;
    // Rings for traces are holes until a process is traced. Every user in the container may be one of several that share a GPU.
    let size = if page.is_traced() { vgpu_region::trace::FILE_SIZE } else { vgpu_region::region::SIZE as u64 };
    write(&dir.join(REGION), 0o666, &vgpu_region::region::header(), Some(size))?;
    if let Some(list) = preload {
        write(&dir.join(PRELOAD), 0o444, list.as_bytes(), None)?;
    }
    Ok(())
}

fn write(path: &Path, mode: u32, contents: &[u8], size: Option<u64>) -> Result<()> {
    let write = || {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(contents)?;
        if let Some(size) = size {
            file.set_len(size)?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))
    };
    write().map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests;
