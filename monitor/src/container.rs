//! Containers with limits on this host: record, limits page and account of each.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_config::Inventory;
use vgpu_config::devices::{self, Visible};
use vgpu_config::dialect::claims::ClaimFile;
use vgpu_oci_hook::bundle::Bundle;
use vgpu_oci_hook::plan;
use vgpu_oci_hook::spec::Spec;
use vgpu_oci_hook::state::{CONTAINERS, LIMITS, RECORD, REGION, Record, SHARED};
use vgpu_region::limits::{GpuLimit, LimitsPage, PAGE_SIZE, Selector};
use vgpu_region::map;
use vgpu_region::uuid::Uuid;

use crate::account::{Account, Reader, Unreadable};
use crate::engine_names::{EngineName, EngineNames};
use crate::file_cache::FileCache;
use crate::inventory::KnownGpus;
use crate::open_files::OpenFileCache;
use crate::rights::{RIGHTS, Rights};
use crate::shared_file;
use crate::text::display_name;

/// Container with limits.
#[derive(Debug)]
pub struct Container {
    /// Directory of the container in the state directory.
    pub dir: PathBuf,
    /// Record written when the container was created.
    pub record: Arc<Record>,
    /// Copy of the current limits page; if it cannot be read, a page by the record.
    pub limits: Box<LimitsPage>,
    /// Reason why the limits page cannot be read.
    unreadable_limits: Option<String>,
    /// Account of what the container's processes hold, by their own claim.
    pub account: Result<Account, Unreadable>,
    /// What the container may keep beyond its limits. `None` if they were never changed.
    pub rights: Option<Arc<Rights>>,
    /// Name that an engine gave it. `None` for containers of pods, and if it is not known.
    pub engine_name: Option<EngineName>,
}

/// Directory of a container whose record cannot be read, so that neither its limits nor its processes are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Directory of the container in the state directory.
    pub dir: PathBuf,
    /// What cannot be read, and why.
    pub reason: String,
}

impl Container {
    /// Reads a container's directory. `None` if the container is gone.
    fn read(dir: PathBuf, reader: &mut Reader, files: &mut Files) -> Option<Result<Self, Unknown>> {
        let record = match files.records.get(&dir) {
            None if dir.join(LIMITS).exists() => Err(io::ErrorKind::NotFound.into()),
            // The directory is not a container's, or is being removed.
            None => return None,
            Some(read) => read,
        };
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let remedy = format!("if the container is gone, unmount {} and remove {}", dir.join(SHARED).display(), dir.display());
                let reason = format!("{RECORD} cannot be read: {error}; {remedy}");
                return Some(Err(Unknown { dir, reason }));
            }
        };
        if !record.is_live() {
            return None;
        }
        let kept = files.open.with(&dir, &record, |open| (read_page(&open.limits), reader.read_file(&open.region)));
        let (read, account) = kept.unwrap_or_else(|| (read_limits(&dir.join(LIMITS)), reader.read(&dir.join(REGION))));
        // It may have been removed meanwhile.
        if (read.is_err() || account.is_err()) && !dir.exists() {
            return None;
        }
        let unreadable_limits = read.as_ref().err().map(|error| format!("{LIMITS} cannot be read: {error}"));
        let by_record = || Box::new(record.limits.page().unwrap_or_else(|| LimitsPage::new([])));
        let limits = read.unwrap_or_else(|_| by_record());
        let is_changed = limits.generation.load(Relaxed) != 0;
        let rights = if is_changed { files.rights.get(&dir).and_then(Result::ok) } else { None };
        let engine_name = files.names.get(&dir, &record);
        Some(Ok(Self { dir, record, limits, unreadable_limits, account, rights, engine_name }))
    }

    /// Returns what cannot be read of the container, and why.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        let account = self.account.as_ref().err().map(ToString::to_string);
        let reasons: Vec<String> = self.unreadable_limits.iter().cloned().chain(account).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Returns the name to display.
    #[must_use]
    pub fn name(&self) -> String {
        let Record { namespace, pod, container, id, .. } = &*self.record;
        display_name([namespace, pod, container], self.engine_name.as_ref().map(|given| given.name.as_str()), id)
    }

    /// Returns the container's GPUs in the order in which the container numbers them: those of its bundle (see [`Container::by_bundle`]),
    /// else those in its account, else those that its limits name, else all of the machine. The account is the tenant's to write, so only
    /// GPUs that exist or that the limits name count.
    #[must_use]
    pub fn gpus(&self, by_bundle: &[Uuid], known: &KnownGpus) -> Vec<Uuid> {
        let mut found = by_bundle.to_vec();
        let named = self.named_gpus();
        if found.is_empty() {
            let claimed = self.account.iter().flat_map(|account| account.gpus.iter().map(|gpu| gpu.uuid));
            found.extend(claimed.filter(|&uuid| known.place(uuid).is_some() || named.contains(&uuid)));
        }
        if found.is_empty() {
            found = named;
        }
        if found.is_empty() {
            found.extend(known.gpus());
        }
        found.sort_by_key(|&uuid| known.place(uuid).unwrap_or(usize::MAX));
        found.dedup();
        found.truncate(vgpu_region::MAX_GPUS);
        found
    }

    /// Returns the GPUs that the limits name.
    #[must_use]
    pub fn named_gpus(&self) -> Vec<Uuid> {
        let named = |entry: &GpuLimit| match entry.selector() {
            Some(Selector::Uuid(uuid)) => Some(uuid),
            _ => None,
        };
        self.limits.gpus().filter_map(named).collect()
    }

    /// Returns the GPUs that the container's bundle gives it. `None` if the bundle does not say.
    #[must_use]
    pub fn by_bundle(&self, inventory: &Inventory) -> Option<Vec<Uuid>> {
        let spec = Bundle::load(&self.record.bundle, None).ok().map(|bundle| bundle.spec);
        let narrowed = self.record.limits.devices.as_ref().map(|list| Visible::parse(&list.join(",")));
        let state_dir = self.dir.ancestors().nth(2)?;
        // Only claims' files are read. Others are in folders that tenants may write, where a read can hang.
        let read = |path: &Path| std::fs::read_to_string(ClaimFile::path_of_mount(path, state_dir)?).ok();
        let minors = spec.as_ref().map(Spec::gpu_minors).unwrap_or_default();
        let visible = match narrowed {
            Some(narrowed) => narrowed,
            // The bundle's own nodes tell more than a variable, which the image may set.
            None if !minors.is_empty() => Visible::default(),
            None => plan::request(spec.as_ref()?, state_dir, read).ok()?.visible,
        };
        devices::candidates(&visible, &minors, Some(inventory))?.into_iter().map(|gpu| gpu.uuid).collect()
    }

    /// Returns the limits on the container's `nth` GPU, which has this UUID.
    #[must_use]
    pub fn limit(&self, uuid: Uuid, nth: usize) -> Option<&GpuLimit> {
        self.limits.find(uuid, u32::try_from(nth).ok())
    }
}

fn read_limits(path: &Path) -> io::Result<Box<LimitsPage>> {
    let opened = shared_file::open(path).map_err(|error| match shared_file::is_leased(&error) {
        true => io::Error::other(format!("{} holds a lease on it", shared_file::lease_holder(path))),
        false => error,
    });
    read_page(&opened?)
}

fn read_page(file: &File) -> io::Result<Box<LimitsPage>> {
    let mut page = Box::new(LimitsPage::new([]));
    // SAFETY: the page is ours alone, PAGE_SIZE bytes of integers and atomics, for which any bytes are valid.
    let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut *page).cast::<u8>(), PAGE_SIZE) };
    file.read_exact_at(bytes, 0)?;
    page.check().map_err(|why| io::Error::other(map::Error::Limits(why).to_string()))?;
    Ok(page)
}

/// Reads the container in a directory. `None` if the directory is incomplete, or the container is gone.
#[must_use]
pub fn read(dir: &Path, reader: &mut Reader) -> Option<Container> {
    Container::read(dir.to_owned(), reader, &mut Files::default())?.ok()
}

/// Lists the containers with limits in a state directory, the oldest first.
#[must_use]
pub fn list(state_dir: &Path, reader: &mut Reader) -> Vec<Container> {
    list_with_unknown(state_dir, reader).0
}

/// Lists the containers with limits in a state directory, the oldest first, and those whose record cannot be read, by their directory.
#[must_use]
pub fn list_with_unknown(state_dir: &Path, reader: &mut Reader) -> (Vec<Container>, Vec<Unknown>) {
    list_again(state_dir, reader, &mut Files::default())
}

/// Files of containers that need not be read or opened again.
#[derive(Debug)]
pub struct Files {
    records: FileCache<Record>,
    rights: FileCache<Rights>,
    open: OpenFileCache,
    names: EngineNames,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            records: FileCache::new(RECORD),
            rights: FileCache::new(RIGHTS),
            open: OpenFileCache::default(),
            names: EngineNames::default(),
        }
    }
}

/// Lists the containers as [`list_with_unknown`] does. Files that have not changed since the last call are not read again.
#[must_use]
pub fn list_again(state_dir: &Path, reader: &mut Reader, files: &mut Files) -> (Vec<Container>, Vec<Unknown>) {
    let entries = std::fs::read_dir(state_dir.join(CONTAINERS)).into_iter().flatten().flatten();
    let complete = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for read in complete.filter_map(|entry| Container::read(entry.path(), reader, files)) {
        match read {
            Ok(container) => found.push(container),
            Err(other) => unknown.push(other),
        }
    }
    files.records.forget_others();
    files.rights.forget_others();
    files.open.forget_others();
    let live: HashSet<(&Path, u64)> = found.iter().map(|container| (&*container.dir, container.record.created)).collect();
    files.names.retain(|dir, created| live.contains(&(dir, created)));
    found.sort_by(|a, b| (a.record.created, &a.record.id).cmp(&(b.record.created, &b.record.id)));
    unknown.sort_by(|a, b| a.dir.cmp(&b.dir));
    (found, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::Host;
    use vgpu_config::limits::{GpuLimits, Which};
    use vgpu_config::quantity::Bytes;

    #[test]
    fn only_gpus_that_exist_or_are_named_are_rows() {
        let host = Host::new();
        let (inventory, uuids) = Host::inventory(2);
        host.container("c", "a", "p", &[GpuLimits { cores: Some(30), ..GpuLimits::none(Which::All) }]);
        let mut found = list(host.path(), &mut Reader::default());
        let mut gpus = |claimed: &[Uuid]| {
            let of = |uuid: &Uuid| crate::account::GpuAccount { uuid: *uuid, ..crate::account::GpuAccount::default() };
            found[0].account = Ok(Account { gpus: claimed.iter().map(of).collect(), ..Account::default() });
            found[0].gpus(&[], &KnownGpus::new(&inventory))
        };
        assert_eq!(gpus(&[uuids[1], Uuid([66; 16])]), [uuids[1]], "a forged UUID is no GPU");
        assert_eq!(gpus(&[Uuid([66; 16])]), uuids);
    }

    #[test]
    fn gpus_are_those_of_the_bundle_and_no_tenants_file_is_read() {
        let host = Host::new();
        let (inventory, uuids) = Host::inventory(2);
        host.container("c", "a", "p", &[GpuLimits { cores: Some(30), ..GpuLimits::none(Which::All) }]);
        let folder = host.path().join("volume");
        std::fs::create_dir(&folder).unwrap();
        // Who opens it waits for a writer.
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("limits"), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
        let found = list(host.path(), &mut Reader::default());
        let by_bundle = |devices: serde_json::Value| {
            let env = ["NVIDIA_VISIBLE_DEVICES=all", "ALNAIR_WORKSPACE_PATH=/w"];
            let mounts = serde_json::json!([{ "destination": "/w", "source": folder }]);
            let spec = serde_json::json!({ "process": { "env": env }, "mounts": mounts, "linux": { "devices": devices } });
            host.bundle("c", &spec.to_string());
            found[0].by_bundle(&inventory).unwrap()
        };
        assert_eq!(by_bundle(serde_json::json!([])), uuids, "the variable, where the bundle has no nodes");
        let renamed = serde_json::json!([{ "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 1 }]);
        assert_eq!(by_bundle(renamed), [uuids[1]], "the node's own number, whatever its name and the variable");
    }

    #[test]
    fn dead_and_incomplete_containers_are_not_listed() {
        let host = Host::new();
        host.container("one", "a", "p", &[]);
        host.container("two", "b", "p", &[]);
        host.end("one");
        std::fs::create_dir(host.path().join("containers/.new.1.1")).unwrap();
        std::fs::create_dir(host.path().join("containers/half")).unwrap();
        let ids: Vec<String> = list(host.path(), &mut Reader::default()).into_iter().map(|known| known.record.id.clone()).collect();
        assert_eq!(ids, ["two"]);
    }

    #[test]
    fn damaged_containers_are_listed() {
        let host = Host::new();
        let limit = GpuLimits { memory: vgpu_config::quantity::Bytes::new(1 << 30), ..GpuLimits::none(Which::All) };
        for id in ["limits", "record", "whole"] {
            host.container(id, "a", "p", std::slice::from_ref(&limit));
        }
        std::fs::write(host.dir("limits").join(LIMITS), "x").unwrap();
        std::fs::write(host.dir("record").join(RECORD), "{").unwrap();
        let (found, unknown) = list_with_unknown(host.path(), &mut Reader::default());
        let damage: Vec<_> = found.iter().map(|known| (known.record.id.as_str(), known.damage())).collect();
        assert_eq!(damage, [("limits", Some("limits cannot be read: failed to fill whole buffer".to_owned())), ("whole", None)]);
        assert!(found.iter().all(|known| known.limit(Uuid([1; 16]), 0).unwrap().memory_for(0) == Some(1 << 30)), "limits of the record");
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].dir, host.dir("record"));
        assert!(unknown[0].reason.starts_with("container.json cannot be read: EOF while parsing"), "{}", unknown[0].reason);
    }

    #[test]
    fn gpus_come_from_the_bundle_in_the_machines_order() {
        let host = Host::new();
        let (inventory, uuids) = Host::inventory(3);
        let limit = GpuLimits { memory: Bytes::new(1 << 30), ..GpuLimits::none(Which::Index(1)) };
        host.container("c", "a", "p", &[limit]);
        host.bundle("c", &format!(r#"{{"process":{{"env":["NVIDIA_VISIBLE_DEVICES={},{}"]}}}}"#, uuids[2], uuids[0]));
        let found = list(host.path(), &mut Reader::default());
        let gpus = || found[0].gpus(&found[0].by_bundle(&inventory).unwrap_or_default(), &KnownGpus::new(&inventory));
        assert_eq!(gpus(), [uuids[0], uuids[2]]);
        let limit = |nth: usize| found[0].limit(uuids[nth], nth).map(|entry| entry.memory_for(0));
        assert_eq!((limit(0), limit(1)), (None, Some(Some(1 << 30))));
        host.bundle("c", r#"{"linux":{"devices":[{"path":"/dev/nvidia1"},{"path":"/dev/nvidiactl"}]}}"#);
        assert_eq!(gpus(), [uuids[1]]);
        host.bundle("c", "{}");
        assert_eq!(gpus(), uuids);
    }
}
