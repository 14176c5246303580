//! The container runtimes that are installed, and whether they know vgpu.

use super::machine::{Machine, leading};
use super::report::Report;
use crate::configure::crio::CRIO;
use crate::configure::drop_in::DropIn;
use crate::configure::podman::PODMAN;
use crate::configure::{Runtime, containerd, docker};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item};

pub(super) fn all(machine: &Machine, report: &mut Report) {
    let before = report.0.len();
    for (runtime, subject, programs) in [
        (Runtime::Docker, "docker", &["dockerd"][..]),
        (Runtime::Containerd, "containerd", &["containerd"]),
        (Runtime::Crio, "crio", &["crio"]),
        (Runtime::Podman, "podman", &["podman"]),
    ] {
        let Some(program) = programs.iter().find_map(|name| machine.program(name)) else { continue };
        let version = machine.version(&program).unwrap_or_else(|| "of unknown version".into());
        let look = Look { machine, report, subject, version, config: machine.path(runtime.usual_config()) };
        match runtime {
            Runtime::Docker => look.docker(),
            Runtime::Containerd => look.containerd(),
            Runtime::Crio => look.drop_in(&CRIO),
            Runtime::Podman => look.drop_in(&PODMAN),
        }
    }
    if report.0.len() == before {
        report.warn("runtimes", "no container runtime is installed", "install Docker, containerd, CRI-O or Podman");
    }
}

/// What is known of a runtime while it is looked at.
struct Look<'a> {
    machine: &'a Machine,
    report: &'a mut Report,
    subject: &'static str,
    version: String,
    config: PathBuf,
}

impl Look<'_> {
    fn docker(mut self) {
        let text = crate::file_change::read(&self.config);
        let root = match text.map_err(Into::into).and_then(|text| docker::parse(&self.config, text.as_deref())) {
            Ok(root) => root,
            Err(error) => return self.broken(&error),
        };
        self.registered(docker::registered(&root), docker::is_default(&root));
        if leading(&self.version).first().is_some_and(|major| *major < 24) {
            let says = format!("{} has no --annotation", self.version);
            self.report.note(self.subject, format!("{says}; limits are asked for by environment (-e CUDA_DEVICE_MEMORY_LIMIT=1g)"));
        }
    }

    fn containerd(mut self) {
        let found = match containerd::registration(&self.config) {
            Ok(found) => found,
            Err(error) => return self.broken(&error),
        };
        self.registered(found.binary.as_deref(), found.default);
        for trouble in found.troubles {
            use vgpu_containerd::Trouble::{Annotations, CriDisabled, NotImported, Shadowed, Stale};
            let says = trouble.to_string();
            match trouble {
                CriDisabled => self.report.note(self.subject, says),
                NotImported(_) | Stale(_) => self.report.fail(self.subject, says, "vgpu configure containerd"),
                Annotations(..) => self.report.warn(self.subject, says, "vgpu configure containerd"),
                Shadowed(path) => {
                    let todo = format!("give {} a name that sorts before 99-vgpu.toml, or merge it into the main file", path.display());
                    self.report.fail(self.subject, says, todo);
                }
            }
        }
    }

    /// For runtimes that have a drop-in of ours or none: a runtime in its section, or hooks.
    fn drop_in(mut self, kind: &DropIn) {
        let text = self.machine.read(kind.path(&unrooted(self.machine, &self.config))).filter(|text| kind.is_ours(text));
        let doc: Option<DocumentMut> = text.as_deref().and_then(|text| text.parse().ok());
        let get = |item, keys: &[&str]| keys.iter().try_fold(item, |item: &Item, key| item.get(key));
        let section = doc.as_ref().and_then(|doc| get(doc.as_item(), kind.section));
        let program = section.and_then(|item| get(item, kind.program));
        let program = program.and_then(|item| item.as_str().or_else(|| item.as_array()?.get(0)?.as_str()));
        if program.is_none() && section.is_some_and(|item| item.get("hooks_dir").is_some()) {
            return self.report.ok(self.subject, format!("{}, by hooks.d", self.version));
        }
        self.registered(program, text.as_deref().is_some_and(|text| kind.is_default(text)));
    }

    fn registered(&mut self, program: Option<&str>, default: bool) {
        let version = &self.version;
        match program {
            None => {
                let todo = format!("vgpu configure {}", self.subject);
                self.report.warn(self.subject, format!("{version}, does not know vgpu"), todo);
            }
            Some(program) if self.machine.program(Path::new(program)).is_none() => {
                let says = format!("{version}, registered {program} is not there");
                self.report.fail(self.subject, says, format!("vgpu configure {}", self.subject));
            }
            Some(program) => {
                let default = if default { ", the default" } else { "" };
                self.report.ok(self.subject, format!("{version}, runtime vgpu is {program}{default}"));
            }
        }
    }

    fn broken(self, error: &dyn std::fmt::Display) {
        self.report.fail(self.subject, format!("{}, {error}", self.version), "correct the file");
    }
}

/// The machine's own name for one of its files.
fn unrooted(machine: &Machine, path: &Path) -> PathBuf {
    Path::new("/").join(path.strip_prefix(machine.path("/")).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report::State;
    use std::fs;

    fn program(dir: &Path, name: &str, says: &str) {
        let path = dir.join("bin").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn each_runtime_is_found_and_its_registration_told() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let look = || {
            let mut report = Report::default();
            all(&machine, &mut report);
            report.0
        };
        assert_eq!(look()[0].subject, "runtimes");

        program(dir.path(), "dockerd", "Docker version 20.10.24+dfsg1, build 5d6db84");
        program(dir.path(), "podman", "podman version 4.3.1");
        let found = look();
        assert_eq!(found[0].says, "20.10.24+dfsg1, does not know vgpu");
        assert_eq!(found[0].todo.as_deref(), Some("vgpu configure docker"));
        assert!(found[1].says.contains("no --annotation"));
        assert_eq!(found[2].says, "4.3.1, does not know vgpu");

        fs::create_dir_all(dir.path().join("etc/docker")).unwrap();
        let config = dir.path().join("etc/docker/daemon.json");
        fs::write(&config, "{\"runtimes\":{\"vgpu\":{\"path\":\"/bin/vgpu-runtime\"}},\"default-runtime\":\"vgpu\"}").unwrap();
        assert_eq!(look()[0].state, State::Fail, "its program is not there");
        program(dir.path(), "vgpu-runtime", "");
        assert_eq!(look()[0].says, "20.10.24+dfsg1, runtime vgpu is /bin/vgpu-runtime, the default");
        fs::write(&config, "{").unwrap();
        assert_eq!(look()[0].state, State::Fail);
    }
}
