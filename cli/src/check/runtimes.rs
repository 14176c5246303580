//! Checks of the installed container runtimes, and of vgpu's registration with them.

use super::machine::{Machine, version_numbers};
use super::report::{Report, State};
use crate::configure::crio::CRIO;
use crate::configure::drop_in::DropIn;
use crate::configure::podman::PODMAN;
use crate::configure::{Runtime, containerd, docker};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item};

/// Checks each container runtime that is installed.
pub(super) fn check_runtimes(machine: &Machine, report: &mut Report) {
    let findings_before = report.0.len();
    for (runtime, subject, programs) in [
        (Runtime::Docker, "docker", &["dockerd"][..]),
        (Runtime::Containerd, "containerd", &["containerd"]),
        (Runtime::Crio, "crio", &["crio"]),
        (Runtime::Podman, "podman", &["podman"]),
    ] {
        let Some(program) = programs.iter().find_map(|name| machine.program(name)) else { continue };
        let version = machine.version(&program).unwrap_or_else(|| "unknown version".into());
        let check = RuntimeCheck { machine, report, subject, version, config: machine.path(runtime.default_config()) };
        match runtime {
            Runtime::Docker => check.docker(),
            Runtime::Containerd => check.containerd(),
            Runtime::Crio => check.drop_in(&CRIO),
            Runtime::Podman => check.drop_in(&PODMAN),
        }
    }
    let found = &report.0[findings_before..];
    if found.is_empty() {
        report.fail("runtimes", "no container runtime is installed", "install Docker, containerd, CRI-O or Podman");
    } else if !found.iter().any(|finding| matches!(finding.state, State::Ok | State::Fail)) {
        let message = "vgpu is registered with no container runtime, so no container is limited";
        report.fail("runtimes", message, "vgpu configure docker, containerd, crio or podman");
    }
}

/// Container runtime under check.
struct RuntimeCheck<'a> {
    machine: &'a Machine,
    report: &'a mut Report,
    subject: &'static str,
    version: String,
    config: PathBuf,
}

impl RuntimeCheck<'_> {
    fn docker(mut self) {
        let text = crate::file_change::read(&self.config);
        let root = match text.map_err(Into::into).and_then(|text| docker::parse(&self.config, text.as_deref())) {
            Ok(root) => root,
            Err(error) => return self.report_invalid(&error),
        };
        self.report_registration(docker::registered(&root), docker::is_default(&root));
        if version_numbers(&self.version).first().is_some_and(|major| *major < 24) {
            let message = format!("{} has no --annotation; request limits by environment (-e CUDA_DEVICE_MEMORY_LIMIT=1g)", self.version);
            self.report.note(self.subject, message);
        }
    }

    fn containerd(mut self) {
        let found = match containerd::registration(&self.config) {
            Ok(found) => found,
            Err(error) => return self.report_invalid(&error),
        };
        self.report_registration(found.binary.as_deref(), found.default);
        for trouble in found.troubles {
            use vgpu_containerd::Trouble::{Annotations, CriDisabled, NotImported, Shadowed, Stale};
            let message = trouble.to_string();
            match trouble {
                CriDisabled => self.report.note(self.subject, message),
                NotImported(_) | Stale(_) => self.report.fail(self.subject, message, "vgpu configure containerd"),
                Annotations(..) => self.report.warn(self.subject, message, "vgpu configure containerd"),
                Shadowed(path) => {
                    let remedy = format!("rename {} to sort before 99-vgpu.toml, or merge it into the main file", path.display());
                    self.report.fail(self.subject, message, remedy);
                }
            }
        }
    }

    /// Checks a runtime that vgpu configures by a drop-in: a runtime in its section, or hooks.
    fn drop_in(mut self, kind: &DropIn) {
        let text = self.machine.read(kind.path(&unrooted(self.machine, &self.config))).filter(|text| kind.is_ours(text));
        let doc: Option<DocumentMut> = text.as_deref().and_then(|text| text.parse().ok());
        let lookup = |item, keys: &[&str]| keys.iter().try_fold(item, |item: &Item, key| item.get(key));
        let section = doc.as_ref().and_then(|doc| lookup(doc.as_item(), kind.section));
        let program = section.and_then(|item| lookup(item, kind.program));
        let program = program.and_then(|item| item.as_str().or_else(|| item.as_array()?.get(0)?.as_str()));
        if program.is_none() && section.is_some_and(|item| item.get("hooks_dir").is_some()) {
            return self.report.ok(self.subject, format!("{}, vgpu is registered in hooks.d", self.version));
        }
        self.report_registration(program, text.as_deref().is_some_and(|text| kind.is_default(text)));
    }

    /// Reports under which program vgpu is registered, if at all.
    fn report_registration(&mut self, program: Option<&str>, default: bool) {
        let version = &self.version;
        match program {
            None => {
                let remedy = format!("vgpu configure {}", self.subject);
                self.report.warn(self.subject, format!("{version}, vgpu is not registered"), remedy);
            }
            Some(program) if self.machine.program(Path::new(program)).is_none() => {
                let message = format!("{version}, registered runtime {program} is missing or not executable");
                self.report.fail(self.subject, message, format!("vgpu configure {}", self.subject));
            }
            Some(program) => {
                let default = if default { ", the default" } else { "" };
                self.report.ok(self.subject, format!("{version}, runtime vgpu is {program}{default}"));
            }
        }
    }

    /// Reports a configuration file that cannot be read.
    fn report_invalid(self, error: &dyn std::fmt::Display) {
        self.report.fail(self.subject, format!("{}, {error}", self.version), "correct the file");
    }
}

/// Removes the machine's root from a path.
fn unrooted(machine: &Machine, path: &Path) -> PathBuf {
    Path::new("/").join(path.strip_prefix(machine.path("/")).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn program(dir: &Path, name: &str, output: &str) {
        let path = dir.join("bin").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\necho '{output}'\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn runtimes_and_their_registrations_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let findings = || {
            let mut report = Report::default();
            check_runtimes(&machine, &mut report);
            report.0
        };
        assert_eq!((findings()[0].subject, findings()[0].state), ("runtimes", State::Fail));

        program(dir.path(), "dockerd", "Docker version 20.10.24+dfsg1, build 5d6db84");
        program(dir.path(), "podman", "podman version 4.3.1");
        let found = findings();
        assert_eq!(found[0].message, "20.10.24+dfsg1, vgpu is not registered");
        assert_eq!(found[0].remedy.as_deref(), Some("vgpu configure docker"));
        assert!(found[1].message.contains("no --annotation"));
        assert_eq!(found[2].message, "4.3.1, vgpu is not registered");
        assert_eq!((found[2].state, found[3].subject, found[3].state), (State::Warn, "runtimes", State::Fail));

        fs::create_dir_all(dir.path().join("etc/docker")).unwrap();
        let config = dir.path().join("etc/docker/daemon.json");
        fs::write(&config, "{\"runtimes\":{\"vgpu\":{\"path\":\"/bin/vgpu-runtime\"}},\"default-runtime\":\"vgpu\"}").unwrap();
        assert_eq!(findings()[0].state, State::Fail, "its program does not exist");
        program(dir.path(), "vgpu-runtime", "");
        assert_eq!(findings()[0].message, "20.10.24+dfsg1, runtime vgpu is /bin/vgpu-runtime, the default");
        assert!(findings().iter().all(|finding| finding.state != State::Fail), "one of the two suffices");
        fs::write(&config, "{").unwrap();
        assert_eq!(findings()[0].state, State::Fail);
    }
}
