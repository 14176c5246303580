//! Names that Docker, Podman and nerdctl give their containers.
//!
//! A runtime is told a container's ID only. The names are in files of the engines, which are found by the container's bundle: the engine
//! chose its path and wrote its configuration. A file counts only if nobody but root and this process's user can write it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vgpu_oci_hook::bundle::Bundle;
use vgpu_oci_hook::spec::Spec;
use vgpu_oci_hook::state::Record;

use crate::file_cache::{Version, version};

/// Largest file of an engine that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Files in which Docker and its kin mount the machine's names into each container. They are in the folder of Docker's own container.
const DOCKERS_MOUNTS: [&str; 3] = ["hostname", "hosts", "resolv.conf"];
/// nerdctl's annotation with the name.
const NERDCTL_NAME: &str = "nerdctl/name";

/// A container engine that names its containers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// `config.v2.json` in the container's folder of the data root.
    Docker,
    /// `containers.json` of the storage.
    Podman,
    /// The annotation that nerdctl writes into the bundle.
    Nerdctl,
}

/// The name of a container, and the engine that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineName {
    /// The name, as the engine's own commands show it.
    pub name: String,
    /// The engine.
    pub engine: Engine,
}

/// Where a container's name is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A file of the engine, which is replaced when the container is renamed.
    Files(Engine, Vec<PathBuf>),
    /// The bundle.
    Fixed(EngineName),
}

/// Names by ID in one version of a file.
type Names = Arc<BTreeMap<String, String>>;

/// The names of containers. Remembers where each one is, and the files that have not changed.
#[derive(Debug, Default)]
pub struct EngineNames {
    /// By the container's directory and its creation time.
    sources: HashMap<(PathBuf, u64), Option<Source>>,
    files: HashMap<PathBuf, (Version, Names)>,
}

impl EngineNames {
    /// Returns the name that an engine gave the container with this record. `None` for containers of pods, which have their pod's names.
    pub fn get(&mut self, dir: &Path, record: &Record) -> Option<EngineName> {
        if record.pod.is_some() || record.program.is_some() {
            return None;
        }
        let find = || Source::of(record);
        let source = self.sources.entry((dir.to_owned(), record.created)).or_insert_with(find).clone()?;
        match source {
            Source::Fixed(name) => Some(name),
            Source::Files(engine, paths) => paths.iter().find_map(|path| {
                let name = self.read(engine, path)?.get(&record.id)?.clone();
                Some(EngineName { name, engine })
            }),
        }
    }

    /// Forgets the containers for which `is_listed` is false, and the files if none is left.
    pub fn retain(&mut self, is_listed: impl Fn(&Path, u64) -> bool) {
        self.sources.retain(|(dir, created), _| is_listed(dir, *created));
        let sources = self.sources.values().flatten();
        let used: Vec<&PathBuf> = sources.flat_map(|source| if let Source::Files(_, paths) = source { &paths[..] } else { &[] }).collect();
        self.files.retain(|path, _| used.contains(&path));
    }

    fn read(&mut self, engine: Engine, path: &Path) -> Option<Names> {
        // What it is is looked at afterwards: a pipe is not waited for.
        let file = crate::shared_file::open(path).ok()?;
        let found = file.metadata().ok()?;
        let version = version(&found);
        if let Some((_, names)) = self.files.get(path).filter(|(known, _)| *known == version) {
            return Some(Arc::clone(names));
        }
        let is_ours = found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw();
        if !(found.is_file() && is_ours && found.mode() & 0o022 == 0 && found.len() <= MAX_FILE) {
            return None;
        }
        let names = Arc::new(parse(engine, file.take(MAX_FILE)).ok()?);
        self.files.insert(path.to_owned(), (version, Arc::clone(&names)));
        Some(names)
    }
}

impl Source {
    /// Finds where the name of a container is.
    fn of(record: &Record) -> Option<Self> {
        let mut names = record.bundle.iter().rev().map(|name| name.to_str().unwrap_or_default());
        let [last, middle, first] = std::array::from_fn(|_| names.next().unwrap_or_default());
        if last == "userdata" && middle == record.id && first.ends_with("-containers") {
            let folder = record.bundle.ancestors().nth(2)?;
            return Some(Self::Files(Engine::Podman, ["containers.json", "volatile-containers.json"].map(|name| folder.join(name)).into()));
        }
        if last != record.id || !first.starts_with("io.containerd.runtime.") {
            return None;
        }
        let spec = Bundle::load(&record.bundle, None).ok()?.spec;
        match middle {
            // Names of pods, which the record has.
            "k8s.io" => None,
            "moby" => Some(Self::Files(Engine::Docker, vec![dockers_file(&spec, &record.id)?])),
            _ => {
                let name = spec.annotations().remove(NERDCTL_NAME).filter(|name| !name.is_empty())?;
                Some(Self::Fixed(EngineName { name, engine: Engine::Nerdctl }))
            }
        }
    }
}

/// Returns the path of Docker's own record of a container: next to what Docker mounts at `/etc/hostname`, which with `--network
/// container:OTHER` is the other container's.
fn dockers_file(spec: &Spec, id: &str) -> Option<PathBuf> {
    let folder = |source: &PathBuf| {
        let is_dockers = DOCKERS_MOUNTS.iter().any(|name| source.ends_with(name));
        let containers = source.ancestors().nth(2).filter(|folder| is_dockers && folder.ends_with("containers"))?;
        Some(containers.to_owned())
    };
    let sources: Vec<PathBuf> = spec.mounts().filter_map(|mount| mount.source().clone()).collect();
    sources.iter().find_map(folder).map(|containers| containers.join(id).join("config.v2.json"))
}

/// Docker's record of a container, as far as it is read.
#[derive(Deserialize)]
struct DockerRecord {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Name")]
    name: String,
}

/// A container in the list of Podman's storage, as far as it is read.
#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// Reads the names by ID in a file of an engine.
fn parse(engine: Engine, file: impl Read) -> io::Result<BTreeMap<String, String>> {
    let file = io::BufReader::new(file);
    Ok(match engine {
        Engine::Docker => {
            let record: DockerRecord = serde_json::from_reader(file)?;
            [(record.id, record.name.trim_start_matches('/').to_owned())].into()
        }
        Engine::Podman => {
            let list: Vec<StoredContainer> = serde_json::from_reader(file)?;
            list.into_iter().filter_map(|stored| Some((stored.id, stored.names.into_iter().next()?))).collect()
        }
        Engine::Nerdctl => BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests;
