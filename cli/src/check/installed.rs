//! Checks of the policy file and of vgpu's programs.

use super::machine::Machine;
use super::report::Report;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use std::path::{Path, PathBuf};
use vgpu_config::Policy;

/// Checks the policy file, and returns the policy.
///
/// An invalid file stops every container with a GPU.
pub(super) fn check_policy(machine: &Machine, path: Option<&Path>, report: &mut Report) -> Policy {
    const POLICY: &str = "policy";
    let variable = std::env::var_os(vgpu_config::policy::VARIABLE).map(PathBuf::from);
    let chosen = path.or(variable.as_deref());
    let path = chosen.map_or_else(|| machine.path(vgpu_config::policy::DEFAULT_PATH), Path::to_owned);
    if chosen.is_none() && !path.exists() {
        report.note(POLICY, format!("{} does not exist; the defaults apply", vgpu_config::policy::DEFAULT_PATH));
        return Policy::default();
    }
    match Policy::load(Some(&path)) {
        Ok(policy) => {
            report.ok(POLICY, path.display().to_string());
            policy
        }
        Err(error) => {
            report.fail(POLICY, error.to_string(), "correct the file; until then no container with a GPU starts");
            Policy::default()
        }
    }
}

/// Checks vgpu-runtime, vgpu-hook and the low-level runtime.
pub(super) fn check_programs(machine: &Machine, policy: &Policy, report: &mut Report) {
    let hook = policy.hook.clone().unwrap_or_else(|| "/usr/bin/vgpu-hook".into());
    for (subject, path) in [("vgpu-runtime", PathBuf::from("/usr/bin/vgpu-runtime")), ("vgpu-hook", hook)] {
        let remedy = "reinstall the vgpu package";
        match machine.program(&path).map(|found| std::fs::read(found).map(|bytes| is_static(&bytes))) {
            Some(Ok(Some(true))) => report.ok(subject, path.display().to_string()),
            Some(Ok(Some(false))) => {
                report.fail(subject, format!("{}: expected a static program, which an image cannot manipulate", path.display()), remedy);
            }
            Some(_) => report.fail(subject, format!("{}: expected a 64-bit ELF program", path.display()), remedy),
            None => report.fail(subject, format!("{} is missing or not executable", path.display()), remedy),
        }
    }
    const LOW_LEVEL: &str = "low-level runtime";
    let found: Vec<_> = policy.runtimes.iter().filter_map(|name| machine.program(name)).collect();
    match found.first() {
        Some(first) => report.ok(LOW_LEVEL, first.display().to_string()),
        None => {
            let names: Vec<_> = policy.runtimes.iter().map(|name| name.display().to_string()).collect();
            report.fail(LOW_LEVEL, format!("none of {} is installed", names.join(", ")), "install runc or crun");
        }
    }
}

/// Returns whether a program starts without a dynamic loader; `None` if it is not a 64-bit ELF program.
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
    fn dynamic_programs_and_scripts_are_recognized() {
        let dynamic = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&dynamic), Some(false));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn an_invalid_policy_fails_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, "[ceilings]\nmemory = \"10Q\"\n").unwrap();
        let mut report = Report::default();
        check_policy(&Machine::at(dir.path()), Some(&path), &mut report);
        assert_eq!(report.0[0].state, State::Fail);
        assert!(report.0[0].message.contains("line 2"), "{}", report.0[0].message);
    }
}
