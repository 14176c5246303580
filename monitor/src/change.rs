//! Changing a running container's limits.
//!
//! The numbers in the limits page are stored one by one, and in an order in which no process ever sees a GPU without a limit that had
//! one before and has one after. The record is replaced by rename. Two changes at a time wait for each other.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_config::limits::GpuLimits;
use vgpu_oci_hook::state::{LIMITS, RECORD, Record};
use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_region::map;
use vgpu_region::uuid::Uuid;

use crate::atomic_file::replace;
use crate::container::Container;

/// A limit on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// So much of the GPU's own, 1-100.
    Percent(u32),
    /// None.
    Unlimited,
}

/// What is to become different. `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Device memory for each GPU.
    pub memory: Option<Memory>,
    /// Compute time in percent; 0 is no limit.
    pub cores: Option<u32>,
    /// Compute time in percent while nobody else wants the GPU; 0 is no more than `cores`.
    pub cores_soft: Option<u32>,
}

/// Why a container's limits cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A GPU was named that has no limits of its own.
    #[error("no limit of this container is for {gpu} alone: its entries are {}", entries.join(", "))]
    NoSuchEntry {
        /// As it was named.
        gpu: String,
        /// What there is.
        entries: Vec<String>,
    },
    /// The limits page cannot be changed.
    #[error("{}: {why}", path.display())]
    Page {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        why: map::Error,
    },
    /// A file cannot be changed.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |source| Error::File { path: path.to_owned(), source }
}

/// How an entry's GPUs are named to people.
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

/// Changes the limits of a container on every GPU, or on `gpu` alone (a UUID, or the container's own index where its limits are
/// kept by that).
///
/// # Errors
/// There is no such entry, or a file cannot be changed.
pub fn change(container: &Container, gpu: Option<&str>, change: Change) -> Result<(), Error> {
    let folder = File::open(&container.place).map_err(at(&container.place))?;
    folder.lock().map_err(at(&container.place))?;
    let path = container.place.join(LIMITS);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other).map_err(at(&path))?;
    let page = map::limits_for_change(&name).map_err(|why| Error::Page { path, why })?;
    let chosen: Vec<bool> = page.gpus().map(|entry| gpu.is_none_or(|gpu| is_for(entry, gpu))).collect();
    if let (Some(gpu), false) = (gpu, chosen.contains(&true)) {
        return Err(Error::NoSuchEntry { gpu: gpu.to_owned(), entries: page.gpus().map(entry_name).collect() });
    }
    for (entry, _) in page.gpus().zip(&chosen).filter(|(_, chosen)| **chosen) {
        store(entry, change);
    }
    page.tell();
    record(&container.place, &chosen, change)
}

fn store(entry: &GpuLimit, change: Change) {
    match change.memory {
        // Bytes count before percent: what is to count is there before what is not is taken away.
        Some(Memory::Bytes(bytes)) => {
            entry.memory.store(bytes, Release);
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

fn record(place: &Path, chosen: &[bool], change: Change) -> Result<(), Error> {
    let path = place.join(RECORD);
    let text = std::fs::read(&path).map_err(at(&path))?;
    let mut record: Record = serde_json::from_slice(&text).map_err(io::Error::other).map_err(at(&path))?;
    for (limits, _) in record.limits.gpus.iter_mut().zip(chosen).filter(|(_, chosen)| **chosen) {
        note(limits, change);
    }
    let text = serde_json::to_vec_pretty(&record).map_err(io::Error::other).map_err(at(&path))?;
    replace(&path, &text).map_err(at(&path))
}

fn note(limits: &mut GpuLimits, change: Change) {
    let some = |figure: u32| (figure != 0).then_some(figure);
    if let Some(memory) = change.memory {
        (limits.memory, limits.memory_percent) = match memory {
            Memory::Bytes(bytes) => (Some(bytes), None),
            Memory::Percent(percent) => (None, Some(percent)),
            Memory::Unlimited => (None, None),
        };
    }
    limits.cores = change.cores.map_or(limits.cores, some);
    limits.cores_soft = change.cores_soft.map_or(limits.cores_soft, some);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Reader;
    use crate::container::{find, list};
    use crate::test_host::Host;
    use vgpu_config::limits::Which;

    fn limits(gpu: Which, memory: u64, cores: u32) -> GpuLimits {
        GpuLimits { memory: Some(memory), cores: Some(cores), ..GpuLimits::none(gpu) }
    }

    fn changed(host: &Host, gpu: Option<&str>, what: Change) -> Result<(), Error> {
        change(find(&list(host.path(), &mut Reader::default()), "c").unwrap(), gpu, what)
    }

    #[test]
    fn a_change_is_in_the_page_at_once_and_on_record() {
        let host = Host::new();
        host.container("c", "a", "p", &[limits(Which::All, 1 << 30, 30)]);
        // What a process in the container has mapped.
        let path = CString::new(host.place("c").join(LIMITS).as_os_str().as_bytes()).unwrap();
        let mapped = map::limits(&path).unwrap();
        let entry = mapped.gpus().next().unwrap();
        changed(&host, None, Change { memory: Some(Memory::Bytes(2 << 30)), cores: Some(50), ..Change::default() }).unwrap();
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
    fn one_gpu_alone() {
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

    /// While one limit takes another's place, nobody sees none.
    #[test]
    fn there_is_a_limit_at_every_moment() {
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
                store(&entry, Change { memory: Some(Memory::Bytes(7)), ..Change::default() });
            }
            stop.store(true, Relaxed);
        });
    }
}
