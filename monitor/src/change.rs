//! Changes of a running container's limits.
//!
//! The limits page is changed field by field, in an order in which a limit that exists before and after the change exists throughout. The
//! record is replaced by rename. Concurrent changes are serialized by a lock on the container's directory.
//!
//! A container may keep memory that it held when its limit was lowered. What it may keep is written before the change, as what it was allowed to
//! hold, and again afterwards, as what NVML says that it held.

use std::ffi::CString;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::thread;
use std::time::Duration;

use vgpu_config::limits::GpuLimits;
use vgpu_config::quantity::Bytes;
use vgpu_oci_hook::state::{LIMITS, RECORD, Record};
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector};
use vgpu_region::map;
use vgpu_region::uuid::Uuid;

use crate::atomic_file::replace;
use crate::container::Container;
use crate::rights::Rights;
use crate::shared_file::lease_holder;
use crate::snapshot::Share;

/// Number of attempts to get a file that another process has, a tenant's perhaps.
const ATTEMPTS: u32 = 20;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Absolute limit.
    Bytes(Bytes),
    /// Percentage of the GPU's memory, 1-100.
    Percent(u32),
    /// No limit.
    Unlimited,
}

/// Change of limits. `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Device memory for each GPU.
    pub memory: Option<Memory>,
    /// Compute time in percent. 0 removes the limit.
    pub cores: Option<u32>,
    /// Compute time in percent while no other container uses the GPU. 0 means no more than `cores`.
    pub cores_soft: Option<u32>,
}

/// Reason why limits cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The named GPU has no limits of its own.
    #[error("GPU {gpu:?}: expected a GPU with limits of its own; the container's limits are for {}", entries.join(", "))]
    NoSuchEntry {
        /// The given name.
        gpu: String,
        /// Names of the existing entries.
        entries: Vec<String>,
    },
    /// The limits page cannot be changed.
    #[error("{}: {why}", path.display())]
    Page {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Cause.
        why: map::Error,
    },
    /// A process of the container holds a lease on a file. The kernel ends the lease, and the process may take another one.
    #[error("container {container}: {holder} holds a lease on {}: expected none; end that process, or try again in a minute", path.display())]
    Leased {
        /// Name of the container.
        container: String,
        /// The process, as far as it is known.
        holder: String,
        /// Path of the file.
        path: std::path::PathBuf,
    },
    /// Another process has the lock on the container's directory.
    #[error("container {container}: another change of its limits does not end")]
    Busy {
        /// Name of the container.
        container: String,
    },
    /// A file cannot be changed.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Cause.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |source| Error::File { path: path.to_owned(), source }
}

/// Describes the GPUs of an entry for users.
#[must_use]
pub fn entry_name(entry: &GpuLimit) -> String {
    match entry.selector() {
        Some(Selector::Uuid(uuid)) => uuid.to_string(),
        Some(Selector::Index(index)) => format!("its GPU {index}"),
        Some(Selector::All) | None => "all its GPUs".to_owned(),
    }
}

fn is_for(entry: &GpuLimit, gpu: &str) -> bool {
    match entry.selector() {
        Some(Selector::Uuid(uuid)) => Uuid::parse(gpu) == Some(uuid),
        Some(Selector::Index(index)) => index.to_string() == gpu,
        Some(Selector::All) | None => false,
    }
}

/// Changes the limits of a container on every GPU, or on `gpu` alone: a UUID, or the container's own index if its limits are kept by
/// index. `shares` are the container's before the change. [`keep`] should follow.
///
/// # Errors
/// No entry is for `gpu` alone, or a file cannot be changed.
pub fn change(container: &Container, gpu: Option<&str>, change: Change, shares: &[Share]) -> Result<(), Error> {
    let dir = File::open(&container.dir).map_err(at(&container.dir))?;
    lock(&dir, container)?;
    let page = open_page(container)?;
    let chosen: Vec<bool> = page.gpus().map(|entry| gpu.is_none_or(|gpu| is_for(entry, gpu))).collect();
    if let (Some(gpu), false) = (gpu, chosen.contains(&true)) {
        return Err(Error::NoSuchEntry { gpu: gpu.to_owned(), entries: page.gpus().map(entry_name).collect() });
    }
    let before = Rights::read(&container.dir).unwrap_or_default();
    // Without a limit there was nothing to exceed.
    let allowed = |share: &Share| share.memory_limit.map_or(u64::MAX, |limit| before.allowed(&share.uuid, limit));
    let rights = Rights {
        generation: page.generation.load(Relaxed) + 1,
        memory: shares.iter().map(|share| (share.uuid.clone(), allowed(share))).collect(),
    };
    rights.write(&container.dir).map_err(at(&container.dir))?;
    for (entry, _) in page.gpus().zip(&chosen).filter(|(_, chosen)| **chosen) {
        store(entry, change);
    }
    page.notify();
    update_record(&container.dir, &chosen, change)
}

/// Locks a container's directory. Does not wait for long: a process that can open files by handle may lock it, too.
fn lock(dir: &File, container: &Container) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        match dir.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(at(&container.dir)(error)),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
        }
    }
    Err(Error::Busy { container: container.name() })
}

/// Maps a container's limits page for changes. Does not wait for long for a process that holds a lease on it.
pub(crate) fn open_page(container: &Container) -> Result<&'static LimitsPage, Error> {
    let path = container.dir.join(LIMITS);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other).map_err(at(&path))?;
    let _permission = OwnersPermission::of(&path).map_err(at(&path))?;
    for _ in 0..ATTEMPTS {
        match map::limits_for_change(&name) {
            Ok(page) => return Ok(page),
            Err(map::Error::Leased) => thread::sleep(PAUSE),
            Err(why) => return Err(Error::Page { path, why }),
        }
    }
    Err(leased(container, path))
}

/// The permission of a page's owner to write it, while this exists. Root needs none, and other users have the containers of rootless engines.
/// The container cannot use it: it has the page by a read-only mount.
struct OwnersPermission(Option<File>);

impl OwnersPermission {
    fn of(path: &Path) -> io::Result<Self> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(Self(None));
        }
        let file = File::open(path)?;
        let is_own = file.metadata()?.uid() == user.as_raw();
        if is_own {
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        Ok(Self(Some(file).filter(|_| is_own)))
    }
}

impl Drop for OwnersPermission {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = file.set_permissions(Permissions::from_mode(0o444));
        }
    }
}

/// Returns the error for a file of the container on which a process holds a lease.
pub(crate) fn leased(container: &Container, path: std::path::PathBuf) -> Error {
    Error::Leased { container: container.name(), holder: lease_holder(&path), path }
}

/// Lets a container keep what it holds, but no more than it was allowed before the change. `shares` are the container's after the change: since
/// then its library allows no more.
///
/// # Errors
/// A file cannot be changed.
pub fn keep(container: &Container, shares: &[Share]) -> Result<(), Error> {
    let dir = File::open(&container.dir).map_err(at(&container.dir))?;
    lock(&dir, container)?;
    let Some(mut rights) = Rights::read(&container.dir) else { return Ok(()) };
    for share in shares {
        let allowed = rights.memory.get(&share.uuid).copied().unwrap_or(u64::MAX);
        if let Some(held) = share.held {
            rights.memory.insert(share.uuid.clone(), held.min(allowed));
        }
    }
    rights.write(&container.dir).map_err(at(&container.dir))
}

fn store(entry: &GpuLimit, change: Change) {
    match change.memory {
        // Bytes take precedence over percent: the new limit is stored before the old one is removed.
        Some(Memory::Bytes(bytes)) => {
            entry.memory.store(bytes.get(), Release);
            entry.memory_percent.store(0, Release);
        }
        Some(Memory::Percent(percent)) => {
            entry.memory_percent.store(percent, Release);
            entry.memory.store(0, Release);
        }
        Some(Memory::Unlimited) => {
            entry.memory.store(0, Release);
            entry.memory_percent.store(0, Release);
        }
        None => {}
    }
    if let Some(percent) = change.cores_soft {
        entry.cores_soft.store(percent, Relaxed);
    }
    if let Some(percent) = change.cores {
        entry.cores.store(percent, Relaxed);
    }
}

fn update_record(dir: &Path, chosen: &[bool], change: Change) -> Result<(), Error> {
    let path = dir.join(RECORD);
    let text = std::fs::read(&path).map_err(at(&path))?;
    let mut record: Record = serde_json::from_slice(&text).map_err(io::Error::other).map_err(at(&path))?;
    record.decided.get_or_insert_with(|| record.limits.gpus.clone());
    for (limits, _) in record.limits.gpus.iter_mut().zip(chosen).filter(|(_, chosen)| **chosen) {
        apply(limits, change);
    }
    let text = serde_json::to_vec_pretty(&record).map_err(io::Error::other).map_err(at(&path))?;
    replace(&path, &text).map_err(at(&path))
}

fn apply(limits: &mut GpuLimits, change: Change) {
    let nonzero = |percent: u32| (percent != 0).then_some(percent);
    if let Some(memory) = change.memory {
        (limits.memory, limits.memory_percent) = match memory {
            Memory::Bytes(bytes) => (Some(bytes), None),
            Memory::Percent(percent) => (None, Some(percent)),
            Memory::Unlimited => (None, None),
        };
    }
    limits.cores = change.cores.map_or(limits.cores, nonzero);
    limits.cores_soft = change.cores_soft.map_or(limits.cores_soft, nonzero);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Reader;
    use crate::container::list;
    use crate::selection::find;
    use crate::test_host::Host;
    use vgpu_config::limits::Which;

    fn limits(gpu: Which, memory: u64, cores: u32) -> GpuLimits {
        GpuLimits { memory: Bytes::new(memory), cores: Some(cores), ..GpuLimits::none(gpu) }
    }

    fn changed(host: &Host, gpu: Option<&str>, what: Change) -> Result<(), Error> {
        change(find(&list(host.path(), &mut Reader::default()), "c").unwrap(), gpu, what, &[])
    }

    #[test]
    fn a_container_keeps_what_it_held_by_right() {
        let host = Host::new();
        host.container("c", "a", "p", &[limits(Which::All, 4000, 30)]);
        let containers = list(host.path(), &mut Reader::default());
        let share = |limit, held| [Share { uuid: "GPU-1".to_owned(), memory_limit: limit, held, ..Share::default() }];
        let kept = || Rights::read(&host.dir("c")).unwrap().memory.get("GPU-1").copied();
        let lower = |before: (Option<u64>, Option<u64>), to: u64, held: Option<u64>| {
            let what = Change { memory: Some(Memory::Bytes(vgpu_config::quantity::Bytes::new(to).unwrap())), ..Change::default() };
            change(&containers[0], None, what, &share(before.0, before.1)).unwrap();
            let pending = kept();
            keep(&containers[0], &share(Some(to), held)).unwrap();
            (pending, kept())
        };
        assert_eq!(lower((Some(4000), Some(2900)), 1000, Some(3000)), (Some(4000), Some(3000)), "what NVML says after the change");
        assert_eq!(lower((Some(1000), Some(3500)), 500, Some(3500)), (Some(3000), Some(3000)), "not what was taken without right");
        assert_eq!(lower((Some(500), None), 400, None), (Some(3000), Some(3000)), "without NVML, what was allowed");
        assert_eq!(lower((None, Some(9000)), 400, Some(9000)), (Some(u64::MAX), Some(9000)), "there was no limit");
    }

    #[test]
    fn changes_reach_the_page_and_the_record() {
        let host = Host::new();
        host.container("c", "a", "p", &[limits(Which::All, 1 << 30, 30)]);
        // The mapping of a process in the container.
        let path = CString::new(host.dir("c").join(LIMITS).as_os_str().as_bytes()).unwrap();
        let mapped = map::limits(&path).unwrap();
        let entry = mapped.gpus().next().unwrap();
        changed(&host, None, Change { memory: Bytes::new(2 << 30).map(Memory::Bytes), cores: Some(50), ..Change::default() }).unwrap();
        assert_eq!((entry.memory_for(80 << 30), entry.cores_limit()), (Some(2 << 30), Some(50)));
        assert_eq!(mapped.generation.load(Relaxed), 1);
        assert_eq!(host.record("c").limits.gpus, [limits(Which::All, 2 << 30, 50)]);

        changed(&host, None, Change { memory: Some(Memory::Percent(25)), cores: Some(0), ..Change::default() }).unwrap();
        assert_eq!((entry.memory_for(80 << 30), entry.cores_limit()), (Some(20 << 30), None));
        changed(&host, None, Change { memory: Some(Memory::Unlimited), cores_soft: Some(9), ..Change::default() }).unwrap();
        assert_eq!((entry.memory_for(80 << 30), entry.cores_soft.load(Relaxed)), (None, 9));
        let on_record = GpuLimits { cores_soft: Some(9), ..GpuLimits::none(Which::All) };
        assert_eq!(host.record("c").limits.gpus, [on_record]);
        assert_eq!(mapped.generation.load(Relaxed), 3);
    }

    #[test]
    fn leases_and_locks_are_not_waited_for() {
        let host = Host::new();
        host.container("c", "a", "p", &[limits(Which::All, 1 << 30, 30)]);
        let path = host.dir("c").join(LIMITS);
        let holder = File::open(&path).unwrap();
        crate::shared_file::take_lease(&holder, libc::F_RDLCK);
        let lower = Change { cores: Some(10), ..Change::default() };
        let error = changed(&host, None, lower).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("container ns/p/a: process {} holds a lease on {}", std::process::id(), path.display())),
            "{error}"
        );
        drop(holder);
        let dir = File::open(host.dir("c")).unwrap();
        dir.lock().unwrap();
        assert!(matches!(changed(&host, None, lower), Err(Error::Busy { .. })));
        drop(dir);
        changed(&host, None, lower).unwrap();
    }

    #[test]
    fn one_gpu_can_be_changed_alone() {
        let host = Host::new();
        let uuid = Uuid([1; 16]).to_string();
        host.container("c", "a", "p", &[limits(Which::Uuid(uuid.clone()), 1, 10), limits(Which::Index(1), 2, 20)]);
        changed(&host, Some(&uuid), Change { cores: Some(11), ..Change::default() }).unwrap();
        changed(&host, Some("1"), Change { cores: Some(22), ..Change::default() }).unwrap();
        let cores: Vec<_> = host.record("c").limits.gpus.iter().map(|gpu| gpu.cores).collect();
        assert_eq!(cores, [Some(11), Some(22)]);
        let error = changed(&host, Some("GPU-7"), Change::default()).unwrap_err().to_string();
        assert!(error.contains("GPU-7") && error.contains(&uuid) && error.contains("its GPU 1"), "{error}");
        assert_eq!(host.record("c").limits.gpus[0].cores, Some(11));
    }

    #[test]
    fn a_limit_exists_throughout_a_replacement() {
        let entry = GpuLimit::new(Selector::All);
        entry.memory.store(1, Relaxed);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    assert!(entry.memory_for(1 << 30).is_some());
                }
            });
            for _ in 0..200_000 {
                store(&entry, Change { memory: Some(Memory::Percent(50)), ..Change::default() });
                store(&entry, Change { memory: Bytes::new(7).map(Memory::Bytes), ..Change::default() });
            }
            stop.store(true, Relaxed);
        });
    }
}
