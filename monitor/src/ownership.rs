//! Which container a process belongs to, as the kernel tells: nothing that the process can say counts.
//!
//! Its cgroup decides where the container has cgroups of its own: that of the container's first process, or a folder that is called
//! by the container's id. Else its PID namespace does, where the container has one of its own. Whoever sees the host's own mounts, or is in
//! its PID namespace where the container is not, is a program of the host's, in whatever cgroup: nobody gets there from a container.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vgpu_oci_hook::state::Record;

use crate::container::Container;
use crate::processes::Process;

/// By what a container's processes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    id: String,
    /// Its first process.
    pub init: Option<Process>,
}

/// What low-level runtimes keep of a container: runc in `state.json`, crun in `status`.
#[derive(Deserialize)]
struct Kept {
    #[serde(alias = "init_process_pid")]
    pid: u32,
    #[serde(alias = "init_process_start")]
    #[serde(rename = "process-start-time")]
    started: Option<u64>,
}

impl Identity {
    /// Looks for a container's first process.
    #[must_use]
    pub fn find(record: &Record) -> Self {
        let noted = record.init.filter(|init| init.is_alive()).and_then(|init| Process::read(init.pid));
        let kept = || record.runtime_roots.iter().find_map(|root| kept(&root.join(&record.id)));
        Self { id: record.id.clone(), init: noted.or_else(kept).filter(|init| !init.ended) }
    }

    fn is_of_cgroup(&self, path: &str) -> bool {
        path.split('/').any(|part| {
            let bare = part.strip_suffix(".scope").unwrap_or(part);
            bare == self.id || (bare.len() < part.len() && bare.strip_suffix(&self.id).is_some_and(|prefix| prefix.ends_with('-')))
        })
    }
}

fn kept(folder: &Path) -> Option<Process> {
    let text = ["state.json", "status"].iter().find_map(|name| fs::read(folder.join(name)).ok())?;
    let kept: Kept = serde_json::from_slice(&text).ok()?;
    Process::read(kept.pid).filter(|found| kept.started.is_none_or(|started| started == found.started))
}

/// Tells the containers' processes from each other and from everybody else's.
#[derive(Clone, Debug, Default)]
pub struct ProcessOwners {
    this: Process,
    /// The mount namespace of the host's first process.
    host: u64,
    places: Vec<PathBuf>,
    identities: Vec<Identity>,
}

impl ProcessOwners {
    /// The containers' identities, in their order; those in `known` that still hold are taken from there.
    #[must_use]
    pub fn of(containers: &[Container], known: &mut HashMap<PathBuf, Identity>) -> Self {
        let still = |identities: &Identity| {
            let init = identities.init.as_ref()?;
            Process::read(init.pid)
                .filter(|now| now.started == init.started && !now.ended)
                .map(|init| Identity { init: Some(init), ..identities.clone() })
        };
        let identities: Vec<Identity> = containers
            .iter()
            .map(|container| known.get(&container.place).and_then(still).unwrap_or_else(|| Identity::find(&container.record)))
            .collect();
        *known = containers.iter().map(|container| container.place.clone()).zip(identities.iter().cloned()).collect();
        let [this, first] = [std::process::id(), 1].map(|pid| Process::read(pid).unwrap_or_default());
        // In a PID namespace of our own there is no telling who the host is.
        let host = if first.namespace == this.namespace { first.mounts } else { 0 };
        Self { this, host, places: containers.iter().map(|container| container.place.clone()).collect(), identities }
    }

    /// Whether a process belongs to the container whose folder has this name.
    #[must_use]
    pub fn is_of(&self, process: &Process, name: &str) -> bool {
        let place = self.container_of(process).and_then(|place| self.places.get(place));
        place.and_then(|place| place.file_name()).is_some_and(|found| found == name)
    }

    /// The place of the container that a process belongs to.
    #[must_use]
    pub fn container_of(&self, process: &Process) -> Option<usize> {
        self.by_cgroup(process).or_else(|| self.by_namespace(process))
    }

    /// The first process of the container at this place.
    #[must_use]
    pub fn init(&self, place: usize) -> Option<&Process> {
        self.identities.get(place)?.init.as_ref()
    }

    /// The cgroups that are this container's alone: not another container's as well, and we are not in them.
    fn own_cgroups(&self, place: usize) -> impl Iterator<Item = &str> {
        let others = self.identities.iter().enumerate().filter(move |(other, _)| *other != place);
        let others: Vec<&Process> = others.filter_map(|(_, identities)| identities.init.as_ref()).collect();
        self.init(place).into_iter().flat_map(|init| init.cgroups.iter().map(String::as_str)).filter(move |cgroup| {
            let shared = others.iter().any(|other| other.cgroups.iter().any(|theirs| theirs == cgroup));
            *cgroup != "/" && !shared && !self.this.cgroups.iter().any(|ours| is_below(ours, cgroup))
        })
    }

    fn by_cgroup(&self, process: &Process) -> Option<usize> {
        (0..self.identities.len()).filter_map(|place| Some((self.fit(process, place)?, place))).max().map(|(_, place)| place)
    }

    /// How closely a process's cgroup fits that of the container: the innermost of several fits best.
    fn fit(&self, process: &Process, place: usize) -> Option<usize> {
        let identities = self.identities.get(place)?;
        let fitting = |fits: &dyn Fn(&str) -> bool| process.cgroups.iter().filter(|cgroup| fits(cgroup)).map(String::len).max();
        match &identities.init {
            // Nobody gets out of a PID namespace: who is in ours is not of a container that has another one.
            Some(init) if init.namespace != self.this.namespace && process.namespace == self.this.namespace => None,
            // Nor into the host's mounts.
            Some(init) if self.host != 0 && init.mounts != self.host && process.mounts == self.host => None,
            Some(_) => self.own_cgroups(place).filter(|own| fitting(&|cgroup| is_below(cgroup, own)).is_some()).map(str::len).max(),
            // Two runtimes may each have a container of this id.
            None if self.identities.iter().filter(|other| other.id == identities.id).count() > 1 => None,
            None => fitting(&|cgroup| identities.is_of_cgroup(cgroup)),
        }
    }

    fn by_namespace(&self, process: &Process) -> Option<usize> {
        if process.namespace == 0 || process.namespace == self.this.namespace {
            return None;
        }
        let of = |identities: &Identity| identities.init.as_ref().map(|init| init.namespace) == Some(process.namespace);
        let mut fitting = (0..self.identities.len()).filter(|&place| self.identities.get(place).is_some_and(of));
        let only = fitting.next().filter(|_| fitting.next().is_none())?;
        // Whoever has cgroups of its own is known by those.
        self.own_cgroups(only).next().is_none().then_some(only)
    }
}

/// Whether a cgroup is `folder` or in it.
fn is_below(cgroup: &str, folder: &str) -> bool {
    cgroup.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(cgroups: &[&str], namespace: u64) -> Process {
        Process { cgroups: cgroups.iter().map(|&cgroup| cgroup.to_owned()).collect(), namespace, ..Process::default() }
    }

    fn owners(inits: &[(&str, Option<Process>)]) -> ProcessOwners {
        let identities = inits.iter().map(|(id, init)| Identity { id: (*id).to_owned(), init: init.clone() }).collect();
        let places = inits.iter().map(|(id, _)| PathBuf::from("/run/vgpu/containers").join(id)).collect();
        ProcessOwners { this: process(&["/system.slice/vgpu-monitor.service"], 1), host: 500, places, identities }
    }

    #[test]
    fn by_cgroup_then_by_namespace() {
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
            ("its own cgroup", process(&["/pods/a"], 10), Some(0)),
            ("one below", process(&["/pods/a/x"], 10), Some(0)),
            ("a name that begins alike", process(&["/pods/ab"], 20), Some(1)),
            ("the innermost counts", process(&["/pods/a/docker/nested/y"], 30), Some(2)),
            ("a program of the host's in its cgroup", process(&["/pods/a"], 1), None),
            ("another namespace does not lead out", process(&["/pods/a"], 99), Some(0)),
            ("no cgroup of its own, but a namespace", process(&["/"], 40), Some(3)),
            ("nor a namespace", process(&["/"], 1), None),
            ("a namespace of two", process(&["/"], 50), None),
            ("a namespace whose owner has a cgroup", process(&["/elsewhere"], 10), None),
            ("somebody else", process(&["/system.slice/x"], 1), None),
            ("we ourselves", process(&["/system.slice/vgpu-monitor.service"], 1), None),
        ];
        for (description, process, expected) in cases {
            assert_eq!(owners.container_of(&process), expected, "{description}");
        }
    }

    /// A container with the host's PID namespace, in the cgroup of a user's session: what else the user runs is none of its.
    #[test]
    fn programs_of_the_host_are_nobodys() {
        let of = |mounts| Process { mounts, ..process(&["/user.slice/session-1.scope"], 1) };
        let owners = owners(&[("shared", Some(of(600)))]);
        for (description, process, expected) in
            [("the container's own", of(600), Some(0)), ("one with mounts of its own", of(700), Some(0)), ("the host's", of(500), None)]
        {
            assert_eq!(owners.container_of(&process), expected, "{description}");
            assert_eq!(owners.is_of(&process, "shared"), expected.is_some(), "{description}");
        }
        assert!(!owners.is_of(&of(600), "other"));
    }

    #[test]
    fn a_container_whose_first_process_is_unknown_is_known_by_its_id() {
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
    fn what_the_low_level_runtimes_keep_is_read() {
        let this = Process::read(std::process::id()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("status", format!(r#"{{"pid":{},"process-start-time":{},"cgroup-path":"/x"}}"#, this.pid, this.started));
        assert_eq!(kept(dir.path()).map(|found| found.pid), Some(this.pid), "crun");
        write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":{}}}"#, this.pid, this.started));
        assert_eq!(kept(dir.path()).map(|found| found.pid), Some(this.pid), "runc");
        write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":1}}"#, this.pid));
        assert_eq!(kept(dir.path()), None, "another process by now");
    }
}
