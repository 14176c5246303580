//! Which container a process belongs to. Only the kernel's word counts, as a process controls everything else.
//!
//! 1. The cgroup decides if the container has cgroups of its own: those of its first process, or one named after the container's ID.
//! 2. Otherwise the PID namespace decides, if the container has one of its own.
//! 3. A process in the host's mount namespace, or in its PID namespace where the container has another one, is a program of the host
//!    whatever its cgroup: no process leaves a container for these namespaces.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vgpu_oci_hook::state::Record;

use crate::container::Container;
use crate::processes::Process;

/// What identifies a container's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    id: String,
    /// The container's first process.
    pub init: Option<Process>,
}

/// State file of a low-level runtime: `state.json` of runc, `status` of crun.
#[derive(Deserialize)]
struct RuntimeState {
    #[serde(alias = "init_process_pid")]
    pid: u32,
    #[serde(alias = "init_process_start")]
    #[serde(rename = "process-start-time")]
    start_time: Option<u64>,
}

impl Identity {
    /// Looks up a container's first process.
    #[must_use]
    pub fn find(record: &Record) -> Self {
        let recorded = record.init.filter(|init| init.is_alive()).and_then(|init| Process::read(init.pid));
        let from_runtime = || record.runtime_roots.iter().find_map(|root| init_from_runtime(&root.join(&record.id)));
        Self { id: record.id.clone(), init: recorded.or_else(from_runtime).filter(|init| !init.has_exited) }
    }

    /// Returns whether a cgroup path has a component named after the container: `ID`, `ID.scope`, or `PREFIX-ID.scope`.
    fn names_cgroup(&self, path: &str) -> bool {
        path.split('/').any(|part| {
            let bare = part.strip_suffix(".scope").unwrap_or(part);
            bare == self.id || (bare.len() < part.len() && bare.strip_suffix(&self.id).is_some_and(|prefix| prefix.ends_with('-')))
        })
    }
}

fn init_from_runtime(dir: &Path) -> Option<Process> {
    let text = ["state.json", "status"].iter().find_map(|name| fs::read(dir.join(name)).ok())?;
    let state: RuntimeState = serde_json::from_slice(&text).ok()?;
    Process::read(state.pid).filter(|found| state.start_time.is_none_or(|start_time| start_time == found.start_time))
}

/// Mapping from processes to the containers of one sample.
#[derive(Clone, Debug, Default)]
pub struct ProcessOwners {
    this: Process,
    /// Mount namespace of the host's first process. 0 if unknown.
    host_mounts: u64,
    dirs: Vec<PathBuf>,
    identities: Vec<Identity>,
}

impl ProcessOwners {
    /// Identifies the processes of `containers`, and refers to these by their index. Identities in `cache` are reused while they hold.
    #[must_use]
    pub fn new(containers: &[Container], cache: &mut HashMap<PathBuf, Identity>) -> Self {
        let revalidate = |identity: &Identity| {
            let init = identity.init.as_ref()?;
            Process::read(init.pid)
                .filter(|now| now.start_time == init.start_time && !now.has_exited)
                .map(|init| Identity { init: Some(init), ..identity.clone() })
        };
        let identities: Vec<Identity> = containers
            .iter()
            .map(|container| cache.get(&container.dir).and_then(revalidate).unwrap_or_else(|| Identity::find(&container.record)))
            .collect();
        *cache = containers.iter().map(|container| container.dir.clone()).zip(identities.iter().cloned()).collect();
        let [this, first] = [std::process::id(), 1].map(|pid| Process::read(pid).unwrap_or_default());
        // In a PID namespace of our own, PID 1 is not the host's first process.
        let host_mounts = if first.pid_namespace == this.pid_namespace { first.mount_namespace } else { 0 };
        Self { this, host_mounts, dirs: containers.iter().map(|container| container.dir.clone()).collect(), identities }
    }

    /// Returns whether a process belongs to the container with this directory name.
    #[must_use]
    pub fn is_in_container(&self, process: &Process, dir_name: &str) -> bool {
        let dir = self.container_of(process).and_then(|index| self.dirs.get(index));
        dir.and_then(|dir| dir.file_name()).is_some_and(|found| found == dir_name)
    }

    /// Returns the index of the container that a process belongs to.
    #[must_use]
    pub fn container_of(&self, process: &Process) -> Option<usize> {
        self.by_cgroup(process).or_else(|| self.by_namespace(process))
    }

    /// Returns the first process of the container at `index`.
    #[must_use]
    pub fn init(&self, index: usize) -> Option<&Process> {
        self.identities.get(index)?.init.as_ref()
    }

    /// Returns the cgroups that only this container is in: no other container, and not this process.
    fn own_cgroups(&self, index: usize) -> impl Iterator<Item = &str> {
        let others = self.identities.iter().enumerate().filter(move |(other, _)| *other != index);
        let others: Vec<&Process> = others.filter_map(|(_, identity)| identity.init.as_ref()).collect();
        self.init(index).into_iter().flat_map(|init| init.cgroups.iter().map(String::as_str)).filter(move |cgroup| {
            let is_shared = others.iter().any(|other| other.cgroups.iter().any(|theirs| theirs == cgroup));
            *cgroup != "/" && !is_shared && !self.this.cgroups.iter().any(|ours| is_within(ours, cgroup))
        })
    }

    fn by_cgroup(&self, process: &Process) -> Option<usize> {
        (0..self.identities.len()).filter_map(|index| Some((self.cgroup_match(process, index)?, index))).max().map(|(_, index)| index)
    }

    /// Returns the length of the longest cgroup path of the container that the process is in. The innermost container has the longest.
    fn cgroup_match(&self, process: &Process, index: usize) -> Option<usize> {
        let identity = self.identities.get(index)?;
        let longest = |matches: &dyn Fn(&str) -> bool| process.cgroups.iter().filter(|cgroup| matches(cgroup)).map(String::len).max();
        match &identity.init {
            // No process leaves a PID namespace for ours.
            Some(init) if init.pid_namespace != self.this.pid_namespace && process.pid_namespace == self.this.pid_namespace => None,
            // Nor a mount namespace for the host's.
            Some(init)
                if self.host_mounts != 0 && init.mount_namespace != self.host_mounts && process.mount_namespace == self.host_mounts =>
            {
                None
            }
            Some(_) => self.own_cgroups(index).filter(|own| longest(&|cgroup| is_within(cgroup, own)).is_some()).map(str::len).max(),
            // Two runtimes may each have a container with this ID.
            None if self.identities.iter().filter(|other| other.id == identity.id).count() > 1 => None,
            None => longest(&|cgroup| identity.names_cgroup(cgroup)),
        }
    }

    fn by_namespace(&self, process: &Process) -> Option<usize> {
        if process.pid_namespace == 0 || process.pid_namespace == self.this.pid_namespace {
            return None;
        }
        let has_namespace = |identity: &Identity| identity.init.as_ref().map(|init| init.pid_namespace) == Some(process.pid_namespace);
        let mut matching = (0..self.identities.len()).filter(|&index| self.identities.get(index).is_some_and(has_namespace));
        let only = matching.next().filter(|_| matching.next().is_none())?;
        // A container with cgroups of its own is identified by these alone.
        self.own_cgroups(only).next().is_none().then_some(only)
    }
}

/// Returns whether a cgroup is `ancestor` or below it.
fn is_within(cgroup: &str, ancestor: &str) -> bool {
    cgroup.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(cgroups: &[&str], pid_namespace: u64) -> Process {
        Process { cgroups: cgroups.iter().map(|&cgroup| cgroup.to_owned()).collect(), pid_namespace, ..Process::default() }
    }

    fn owners(inits: &[(&str, Option<Process>)]) -> ProcessOwners {
        let identities = inits.iter().map(|(id, init)| Identity { id: (*id).to_owned(), init: init.clone() }).collect();
        let dirs = inits.iter().map(|(id, _)| PathBuf::from("/run/vgpu/containers").join(id)).collect();
        ProcessOwners { this: process(&["/system.slice/vgpu-monitor.service"], 1), host_mounts: 500, dirs, identities }
    }

    #[test]
    fn cgroups_decide_before_namespaces() {
        let owners = owners(&[
            ("a", Some(process(&["/pods/a"], 10))),
            ("ab", Some(process(&["/pods/ab"], 20))),
            ("nested", Some(process(&["/pods/a/docker/nested"], 30))),
            ("plain", Some(process(&["/"], 40))),
            ("host", Some(process(&["/"], 1))),
            ("twin1", Some(process(&["/"], 50))),
            ("twin2", Some(process(&["/"], 50))),
        ]);
        let cases = [
            ("the container's own cgroup", process(&["/pods/a"], 10), Some(0)),
            ("a child cgroup", process(&["/pods/a/x"], 10), Some(0)),
            ("a cgroup with a common prefix", process(&["/pods/ab"], 20), Some(1)),
            ("the innermost container wins", process(&["/pods/a/docker/nested/y"], 30), Some(2)),
            ("a program of the host in the container's cgroup", process(&["/pods/a"], 1), None),
            ("a nested namespace does not lead out", process(&["/pods/a"], 99), Some(0)),
            ("a namespace, without a cgroup", process(&["/"], 40), Some(3)),
            ("neither cgroup nor namespace", process(&["/"], 1), None),
            ("a namespace shared by two containers", process(&["/"], 50), None),
            ("a namespace whose container has a cgroup", process(&["/elsewhere"], 10), None),
            ("a process of the host", process(&["/system.slice/x"], 1), None),
            ("this process", process(&["/system.slice/vgpu-monitor.service"], 1), None),
        ];
        for (description, process, expected) in cases {
            assert_eq!(owners.container_of(&process), expected, "{description}");
        }
    }

    /// The container has the host's PID namespace and the cgroup of a user's session, in which other programs of the user run.
    #[test]
    fn programs_of_the_host_have_no_owner() {
        let of = |mount_namespace| Process { mount_namespace, ..process(&["/user.slice/session-1.scope"], 1) };
        let owners = owners(&[("shared", Some(of(600)))]);
        for (description, process, expected) in [
            ("a process of the container", of(600), Some(0)),
            ("one with a mount namespace of its own", of(700), Some(0)),
            ("a program of the host", of(500), None),
        ] {
            assert_eq!(owners.container_of(&process), expected, "{description}");
            assert_eq!(owners.is_in_container(&process, "shared"), expected.is_some(), "{description}");
        }
        assert!(!owners.is_in_container(&of(600), "other"));
    }

    #[test]
    fn containers_without_a_first_process_match_by_id() {
        let owners = owners(&[("c0ffee", None)]);
        for (cgroup, expected) in [
            ("/c0ffee", Some(0)),
            ("/system.slice/docker-c0ffee.scope", Some(0)),
            ("/kubepods/pod1/c0ffee/x", Some(0)),
            ("/kubepods.slice/cri-containerd-c0ffee.scope", Some(0)),
            ("/kubepods/pod1/c0ffee2", None),
            ("/system.slice/xc0ffee.scope", None),
            ("/x-c0ffee", None),
        ] {
            assert_eq!(owners.container_of(&process(&[cgroup], 2)), expected, "{cgroup}");
        }
    }

    #[test]
    fn runtime_state_files_are_read() {
        let this = Process::read(std::process::id()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("status", format!(r#"{{"pid":{},"process-start-time":{},"cgroup-path":"/x"}}"#, this.pid, this.start_time));
        assert_eq!(init_from_runtime(dir.path()).map(|found| found.pid), Some(this.pid), "crun");
        write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":{}}}"#, this.pid, this.start_time));
        assert_eq!(init_from_runtime(dir.path()).map(|found| found.pid), Some(this.pid), "runc");
        write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":1}}"#, this.pid));
        assert_eq!(init_from_runtime(dir.path()), None, "the PID was reused");
    }
}
