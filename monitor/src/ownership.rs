//! Which container a process belongs to. Only the kernel's word counts, as a process controls everything else.
//!
//! 1. The cgroup decides if the container has cgroups of its own: the one that the low-level runtime made for it, those of its first
//!    process, or one named after the container's ID. The first process may have moved itself below the one that was made.
//! 2. Otherwise the PID namespace decides, if the container has one of its own.
//!    A program that `vgpu run` has started has only the cgroup that was made for it, or, where none could be made, its first process.
//! 3. A process in the host's mount namespace, or in its PID namespace where the container has another one, is a program of the host
//!    whatever its cgroup: no process leaves a container for these namespaces.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use vgpu_oci_hook::state::{Program, Record};

use crate::container::Container;
use crate::process_table::ProcessTable;
use crate::processes::Process;

/// What identifies a container's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Identity {
    id: String,
    /// The container's first process.
    init: Option<Arc<Process>>,
    /// The cgroups that the low-level runtime made for the container, by its state file.
    made: Vec<String>,
    /// Whether this is a program without a container: its other cgroups, and its namespaces, are those of other programs, too.
    is_program: bool,
}

/// State file of a low-level runtime: `state.json` of runc, `status` of crun.
#[derive(Deserialize)]
struct RuntimeState {
    #[serde(alias = "init_process_pid")]
    pid: u32,
    #[serde(alias = "init_process_start")]
    #[serde(rename = "process-start-time")]
    start_time: Option<u64>,
    /// crun's, from the root of the hierarchy.
    #[serde(default, rename = "cgroup-path")]
    cgroup: Option<String>,
    /// runc's, with the mount point: one for each controller, or one without a name.
    #[serde(default, rename = "cgroup_paths")]
    cgroups: HashMap<String, String>,
}

impl RuntimeState {
    /// Reads a container's state file in the low-level runtime's directory for it.
    fn read(dir: &Path) -> Option<Self> {
        let text = ["state.json", "status"].iter().find_map(|name| fs::read(dir.join(name)).ok())?;
        serde_json::from_slice(&text).ok()
    }

    /// Returns the container's first process, if it still exists.
    fn init(&self, processes: &mut ProcessTable) -> Option<Arc<Process>> {
        processes.get(self.pid).filter(|found| self.start_time.is_none_or(|start_time| start_time == found.start_time))
    }

    /// Returns the container's cgroups, as `/proc/PID/cgroup` names them.
    fn cgroups(&self) -> Vec<String> {
        let of_runc = self.cgroups.iter().filter_map(|(controller, path)| {
            let path = path.strip_prefix("/sys/fs/cgroup")?;
            // A controller of version 1 has its own mount point.
            let inside = if controller.is_empty() { path } else { path.get(1..)?.find('/').and_then(|at| path.get(at + 1..))? };
            Some(inside.to_owned())
        });
        of_runc.chain(self.cgroup.clone()).filter(|path| path.starts_with('/') && path.len() > 1).collect()
    }
}

impl Identity {
    /// Looks up a container's first process.
    fn find(record: &Record, processes: &mut ProcessTable) -> Self {
        let recorded = record.init.and_then(|init| processes.get(init.pid).filter(|found| found.start_time == init.start_time));
        let mut states = record.runtime_roots.iter().filter_map(|root| RuntimeState::read(&root.join(&record.id)));
        let found = states.find_map(|state| Some((state.init(processes)?, state.cgroups())));
        let made = found.as_ref().map(|(_, made)| made.clone()).unwrap_or_default();
        let init = recorded.or(found.map(|(init, _)| init)).filter(|init| !init.has_exited);
        Self { id: record.id.clone(), init, made, is_program: record.program.is_some() }
    }

    /// Returns this if the first process still exists, with what has changed of it.
    fn again(self: &Arc<Self>, processes: &mut ProcessTable) -> Option<Arc<Self>> {
        let before = self.init.as_ref()?;
        let init = processes.get(before.pid).filter(|now| now.start_time == before.start_time && !now.has_exited)?;
        let is_same = Arc::ptr_eq(before, &init) || *before == init;
        Some(if is_same { Arc::clone(self) } else { Arc::new(Self { init: Some(init), ..(**self).clone() }) })
    }

    /// Returns the cgroups that may identify the container.
    fn cgroups(&self) -> impl Iterator<Item = &String> {
        let own = self.is_program.then(|| Program::cgroup_name(&self.id));
        let all = self.made.iter().chain(self.init.iter().flat_map(|init| &init.cgroups));
        all.filter(move |cgroup| own.as_ref().is_none_or(|own| cgroup.rsplit('/').next() == Some(own)))
    }
}

/// Mapping from processes to the containers of one sample.
#[derive(Clone, Debug, Default)]
pub struct ProcessOwners {
    this: Process,
    /// Mount namespace of the host's first process. 0 if unknown.
    host_mounts: u64,
    dirs: Arc<Vec<OsString>>,
    identities: Arc<Vec<Arc<Identity>>>,
    by_dir: Arc<HashMap<OsString, usize>>,
    index: Arc<Index>,
}

impl ProcessOwners {
    /// Identifies the processes of `containers`, and refers to these by their index. Reuses what holds of the last sample.
    #[must_use]
    pub fn next(&self, containers: &[Container], processes: &mut ProcessTable) -> Self {
        let [this, first] = [std::process::id(), 1].map(|pid| Process::read(pid).unwrap_or_default());
        // In a PID namespace of our own, PID 1 is not the host's first process.
        let host_mounts = if first.pid_namespace == this.pid_namespace { first.mount_namespace } else { 0 };
        let identity = |container: &Container| {
            let known = self.by_dir.get(container.dir.as_os_str()).and_then(|&at| self.identities.get(at));
            let again = known.and_then(|known| known.again(processes));
            again.unwrap_or_else(|| Arc::new(Identity::find(&container.record, processes)))
        };
        let identities: Vec<Arc<Identity>> = containers.iter().map(identity).collect();
        let is_same = identities.len() == self.identities.len()
            && this.cgroups == self.this.cgroups
            && identities.iter().zip(&*self.identities).all(|(now, before)| Arc::ptr_eq(now, before))
            && containers.iter().zip(&*self.dirs).all(|(now, before)| now.dir.as_os_str() == before);
        if is_same {
            return Self { this, host_mounts, ..self.clone() };
        }
        let dirs = containers.iter().map(|container| container.dir.clone().into_os_string()).collect();
        Self { this, host_mounts, ..Self::default() }.with(dirs, identities)
    }

    /// Returns this with the containers in these directories.
    fn with(self, dirs: Vec<OsString>, identities: Vec<Arc<Identity>>) -> Self {
        let by_dir = Arc::new(dirs.iter().cloned().zip(0..).collect());
        let index = Arc::new(Index::new(&identities, &self.this));
        Self { dirs: Arc::new(dirs), identities: Arc::new(identities), by_dir, index, ..self }
    }

    /// Returns whether a process belongs to the container with this directory name.
    #[must_use]
    pub fn is_in_container(&self, process: &Process, dir_name: &str) -> bool {
        let dir = self.container_of(process).and_then(|index| self.dirs.get(index));
        dir.and_then(|dir| Path::new(dir).file_name()).is_some_and(|found| found == dir_name)
    }

    /// Returns the index of the container that a process belongs to.
    #[must_use]
    pub fn container_of(&self, process: &Process) -> Option<usize> {
        let is_first_of = || self.index.programs.get(&(process.pid, process.start_time)).copied();
        self.by_cgroup(process).or_else(|| self.by_namespace(process)).or_else(is_first_of)
    }

    /// Returns the first process of the container at `index`.
    #[must_use]
    pub fn init(&self, index: usize) -> Option<&Process> {
        self.identities.get(index)?.init.as_deref()
    }

    /// Returns the container with the longest cgroup path that the process is in. The innermost container has the longest.
    fn by_cgroup(&self, process: &Process) -> Option<usize> {
        let own = |cgroup: &str| {
            let ancestors = std::iter::successors(Some(cgroup), |path| Some(path.rsplit_once('/')?.0));
            let found = ancestors.filter_map(|path| Some((path.len(), *self.index.by_cgroup.get(path)?)));
            found.filter(|&(_, index)| !self.is_of_host(process, index)).max()
        };
        let named = |cgroup: &str| Some((cgroup.len(), self.index.named_by(cgroup)?));
        process.cgroups.iter().filter_map(|cgroup| own(cgroup).max(named(cgroup))).max().map(|(_, index)| index)
    }

    /// Returns whether a process in a cgroup of the container is a program of the host: no process leaves a container's PID namespace for
    /// ours, nor its mount namespace for the host's.
    fn is_of_host(&self, process: &Process, index: usize) -> bool {
        let Some(init) = self.init(index) else { return false };
        let has_our_pids = init.pid_namespace != self.this.pid_namespace && process.pid_namespace == self.this.pid_namespace;
        let has_host_mounts =
            self.host_mounts != 0 && init.mount_namespace != self.host_mounts && process.mount_namespace == self.host_mounts;
        has_our_pids || has_host_mounts
    }

    fn by_namespace(&self, process: &Process) -> Option<usize> {
        if process.pid_namespace == 0 || process.pid_namespace == self.this.pid_namespace {
            return None;
        }
        self.index.by_namespace.get(&process.pid_namespace).copied().flatten()
    }
}

/// What identifies the containers of one sample, to look processes up by.
#[derive(Clone, Debug, Default)]
struct Index {
    /// Containers by the cgroups that only they are in: no other container's first process, and not this process.
    by_cgroup: HashMap<String, usize>,
    /// Containers without a first process, by ID.
    by_id: HashMap<String, usize>,
    /// Containers by their PID namespace. `None` if several have it, or if the container is identified by its cgroups alone.
    by_namespace: HashMap<u64, Option<usize>>,
    /// Programs without a container by PID and start time of their first process.
    programs: HashMap<(u32, u64), usize>,
}

impl Index {
    fn new(identities: &[Arc<Identity>], this: &Process) -> Self {
        let inits = || identities.iter().enumerate().filter_map(|(index, identity)| Some((index, identity.init.as_ref()?)));
        let mut by_cgroup: HashMap<&str, Option<usize>> = HashMap::new();
        for (index, identity) in identities.iter().enumerate() {
            for cgroup in identity.cgroups() {
                by_cgroup.entry(cgroup).and_modify(|found| *found = found.filter(|&other| other == index)).or_insert(Some(index));
            }
        }
        let is_ours = |cgroup: &str| this.cgroups.iter().any(|ours| is_within(ours, cgroup));
        let own = by_cgroup.into_iter().filter_map(|(cgroup, index)| Some((cgroup.to_owned(), index?)));
        let by_cgroup: HashMap<String, usize> = own.filter(|(cgroup, _)| cgroup != "/" && !is_ours(cgroup)).collect();
        // Two runtimes may each have a container with the same ID.
        let mut counts: HashMap<&str, usize> = HashMap::new();
        identities.iter().for_each(|identity| *counts.entry(&identity.id).or_default() += 1);
        let unknown =
            identities.iter().enumerate().filter(|(_, identity)| identity.init.is_none() && counts.get(identity.id.as_str()) == Some(&1));
        let has_own_cgroup: HashSet<usize> = by_cgroup.values().copied().collect();
        let mut by_namespace: HashMap<u64, Option<usize>> = HashMap::new();
        for (index, init) in inits().filter(|(index, _)| !identities.get(*index).is_some_and(|identity| identity.is_program)) {
            let only = Some(index).filter(|index| !has_own_cgroup.contains(index));
            by_namespace.entry(init.pid_namespace).and_modify(|found| *found = None).or_insert(only);
        }
        let programs = inits().filter(|(index, _)| identities.get(*index).is_some_and(|identity| identity.is_program));
        let programs = programs.map(|(index, init)| ((init.pid, init.start_time), index)).collect();
        Self { programs, by_id: unknown.map(|(index, identity)| (identity.id.clone(), index)).collect(), by_cgroup, by_namespace }
    }

    /// Returns the container without a first process after which a component of the path is named: `ID`, `ID.scope`, or `PREFIX-ID.scope`.
    fn named_by(&self, cgroup: &str) -> Option<usize> {
        if self.by_id.is_empty() {
            return None;
        }
        cgroup
            .split('/')
            .filter_map(|part| self.by_id.get(part).copied().or_else(|| self.named_by_scope(part.strip_suffix(".scope")?)))
            .max()
    }

    fn named_by_scope(&self, name: &str) -> Option<usize> {
        let after_hyphens = name.match_indices('-').filter_map(|(at, _)| name.get(at + 1..));
        std::iter::once(name).chain(after_hyphens).find_map(|id| self.by_id.get(id).copied())
    }
}

/// Returns whether a cgroup is `ancestor` or below it.
fn is_within(cgroup: &str, ancestor: &str) -> bool {
    cgroup.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
