//! Limits that an operator has changed to last: a container gets them again when it is started again.
//!
//! They replace what the container's request comes to, and only that: they do not apply to another bundle of the same id, nor after a
//! change of the request or the policy that makes another decision of it. They are lost with the state directory, which a reboot empties.
//!
//! They outlive the container: to an OCI runtime, an engine that restarts a container and a user who deletes it and makes another one of the
//! same id and bundle look alike. So each start with them is logged, and they can be listed and forgotten by id.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_config::Limits;
use vgpu_config::limits::{GpuLimits, Mps};

use crate::error::{Error, Result};
use crate::record::Record;
use crate::state::check_id;

/// Directory in the state directory.
const FOLDER: &str = "persistent";
/// Prefix of files that are being written.
const UNFINISHED: &str = ".new.";

/// What lasts for one container.
#[derive(Debug)]
pub struct Kept {
    /// Its id.
    pub id: String,
    /// Its bundle directory.
    pub bundle: PathBuf,
    /// What its request came to.
    pub decided: Vec<GpuLimits>,
    /// What it gets instead.
    pub limits: Vec<GpuLimits>,
}

/// The lasting limits of one container, as they are stored.
#[derive(Debug, Serialize, Deserialize)]
struct Persistent {
    /// Its bundle directory.
    bundle: PathBuf,
    /// What its request came to.
    decided: Vec<GpuLimits>,
    /// What it gets instead.
    limits: Vec<GpuLimits>,
}

/// Returns the path for a container, whose id has been checked.
fn path(state_dir: &Path, id: &str) -> PathBuf {
    state_dir.join(FOLDER).join(id)
}

/// Replaces what a container's request came to by its lasting limits, if it has some. Returns the limits and what they replace.
pub(crate) fn apply(state_dir: &Path, id: &str, bundle: &Path, limits: Limits) -> (Limits, Option<Vec<GpuLimits>>) {
    match read(state_dir, id).filter(|found| found.bundle == bundle && found.decided == limits.gpus) {
        Some(Persistent { decided, limits: gpus, .. }) => {
            let limits = Limits { gpus, ..limits };
            let mps = limits.mps.as_ref().and_then(|mps| Mps::of(&limits, &mps.pipes));
            (Limits { mps, ..limits }, Some(decided))
        }
        None => (limits, None),
    }
}

fn read(state_dir: &Path, id: &str) -> Option<Persistent> {
    serde_json::from_slice(&fs::read(path(state_dir, id)).ok()?).ok()
}

/// Lists the containers with lasting limits by their ids. They need not exist any more. Damaged files are left out, as they do not apply.
///
/// # Errors
/// The files cannot be listed.
pub fn list(state_dir: &Path) -> Result<Vec<Kept>> {
    let folder = state_dir.join(FOLDER);
    let entries = match fs::read_dir(&folder) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::io("read", &folder))?,
    };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(|id| !id.starts_with(UNFINISHED));
    let kept = |id: String| read(state_dir, &id).map(|Persistent { bundle, decided, limits }| Kept { id, bundle, decided, limits });
    let mut all: Vec<Kept> = ids.filter_map(kept).collect();
    all.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(all)
}

/// Makes a container's limits last. They must limit something, as a container without limits would have no record.
///
/// # Errors
/// Nothing is limited, or the file cannot be written.
pub fn write(state_dir: &Path, record: &Record) -> Result<()> {
    if !record.limits.is_limited() {
        return Err(Error::Other(format!("container {}: expected a limit to last; the change lasts until the container ends", record.id)));
    }
    let decided = record.decided.clone().unwrap_or_else(|| record.limits.gpus.clone());
    let persistent = Persistent { bundle: record.bundle.clone(), decided, limits: record.limits.gpus.clone() };
    let text = serde_json::to_vec_pretty(&persistent).map_err(|why| Error::Other(why.to_string()))?;
    let (path, folder) = (path(state_dir, &record.id), state_dir.join(FOLDER));
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::io("create", &folder))?;
    let unfinished = folder.join(format!("{UNFINISHED}{}", std::process::id()));
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path)).map_err(Error::io("write", &path))
}

/// Lets the limits of the container with this id be decided by its request again when it is started again. Returns whether something
/// lasted.
///
/// # Errors
/// The id is invalid, or the file cannot be removed.
pub fn forget(state_dir: &Path, id: &str) -> Result<bool> {
    let path = path(state_dir, check_id(id)?);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(Error::io("remove", &path)(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use vgpu_config::limits::Which;

    fn limits(cores: Option<u32>) -> Limits {
        Limits { gpus: vec![GpuLimits { cores, ..GpuLimits::none(Which::All) }], ..Limits::default() }
    }

    fn record(cores: Option<u32>) -> Record {
        Record {
            id: "c".into(),
            bundle: "/b".into(),
            rootfs: "/r".into(),
            container: None,
            pod: None,
            namespace: None,
            pod_uid: None,
            limits: limits(cores),
            decided: Some(limits(Some(30)).gpus),
            library: "/l".into(),
            preload: true,
            replace: false,
            library_path: String::new(),
            runtime: None,
            runtime_roots: Vec::new(),
            creator: Process::this(),
            init: None,
            created: 0,
            program: None,
        }
    }

    #[test]
    fn limits_last_while_the_request_comes_to_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let cores = |id: &str, bundle: &str, decided: Option<u32>| {
            let (limits, replaced) = apply(dir.path(), id, Path::new(bundle), limits(decided));
            (limits.gpus[0].cores, replaced.is_some())
        };
        assert_eq!(cores("c", "/b", Some(30)), (Some(30), false));
        write(dir.path(), &record(Some(50))).unwrap();
        assert_eq!(cores("c", "/b", Some(30)), (Some(50), true));
        for (id, bundle, decided) in [("c", "/b", Some(40)), ("c", "/other", Some(30)), ("d", "/b", Some(30))] {
            assert_eq!(cores(id, bundle, decided), (decided, false), "{id} {bundle}");
        }
        let error = write(dir.path(), &record(None)).unwrap_err().to_string();
        assert!(error.contains("expected a limit to last"), "{error}");
        assert_eq!((forget(dir.path(), "c").unwrap(), forget(dir.path(), "c").unwrap()), (true, false));
        assert!(forget(dir.path(), "../x").is_err());
        assert_eq!(cores("c", "/b", Some(30)), (Some(30), false));
    }

    #[test]
    fn what_mps_enforces_follows() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &record(Some(50))).unwrap();
        let with_mps = |limits: Limits| Limits { mps: Mps::of(&limits, Path::new("/pipes")), ..limits };
        let (limits, _) = apply(dir.path(), "c", Path::new("/b"), with_mps(limits(Some(30))));
        assert_eq!(limits.mps.unwrap().percent, 50);
    }
}
