//! What vgpu itself brings: the policy file and the programs.

use super::machine::Machine;
use super::report::Report;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use std::path::{Path, PathBuf};
use vgpu_config::Policy;

/// Reads the policy file as the runtime would. A bad one stops every container with a GPU.
pub(super) fn policy(machine: &Machine, named: Option<&Path>, report: &mut Report) -> Policy {
    const POLICY: &str = "policy";
    let variable = std::env::var_os(vgpu_config::policy::VARIABLE).map(PathBuf::from);
    let named = named.or(variable.as_deref());
    let path = named.map_or_else(|| machine.path(vgpu_config::policy::DEFAULT_PATH), Path::to_owned);
    if named.is_none() && !path.exists() {
        report.note(POLICY, format!("{} is not there; the defaults hold", vgpu_config::policy::DEFAULT_PATH));
        return Policy::default();
    }
    match Policy::load(Some(&path)) {
        Ok(policy) => {
            report.ok(POLICY, path.display().to_string());
            policy
        }
        Err(error) => {
            report.fail(POLICY, error.to_string(), "correct it; until then no container with a GPU starts");
            Policy::default()
        }
    }
}

/// vgpu-runtime, vgpu-hook, and the runtimes below them.
pub(super) fn programs(machine: &Machine, policy: &Policy, report: &mut Report) {
    let hook = policy.hook.clone().unwrap_or_else(|| "/usr/bin/vgpu-hook".into());
    for (subject, path) in [("vgpu-runtime", PathBuf::from("/usr/bin/vgpu-runtime")), ("vgpu-hook", hook)] {
        let todo = "install the vgpu package again";
        match machine.program(&path).map(|found| std::fs::read(found).map(|bytes| is_static(&bytes))) {
            Some(Ok(Some(true))) => report.ok(subject, path.display().to_string()),
            Some(Ok(Some(false))) => {
                report.fail(subject, format!("{} is not static; an image could take it over", path.display()), todo);
            }
            Some(_) => report.fail(subject, format!("{} is not a program for this machine", path.display()), todo),
            None => report.fail(subject, format!("{} is not there", path.display()), todo),
        }
    }
    const BELOW: &str = "low-level runtime";
    let found: Vec<_> = policy.runtimes.iter().filter_map(|name| machine.program(name)).collect();
    match found.first() {
        Some(first) => report.ok(BELOW, first.display().to_string()),
        None => {
            let names: Vec<_> = policy.runtimes.iter().map(|name| name.display().to_string()).collect();
            report.fail(BELOW, format!("none of {} is installed", names.join(", ")), "install runc or crun");
        }
    }
}

/// Whether an ELF program starts without a dynamic loader.
fn is_static(bytes: &[u8]) -> Option<bool> {
    let header = elf::FileHeader64::<LE>::parse(bytes).ok()?;
    let segments = header.program_headers(LE, bytes).ok()?;
    Some(segments.iter().all(|segment| segment.p_type(LE) != elf::PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report::State;
    use std::fs;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        let dynamic = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&dynamic), Some(false));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn a_bad_policy_fails_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, "[ceilings]\nmemory = \"10Q\"\n").unwrap();
        let mut report = Report::default();
        policy(&Machine::at(dir.path()), Some(&path), &mut report);
        assert_eq!(report.0[0].state, State::Fail);
        assert!(report.0[0].says.contains("line 2"), "{}", report.0[0].says);
    }
}
