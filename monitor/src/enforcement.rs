//! Response to violations: logs them, and ends processes if the policy says so.

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::{error, info, warn};
use vgpu_config::policy::OnViolation;

use crate::processes::Process;
use crate::violations::{Kind, Offender, Violation};

const fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Logs new violations, and ends the offenders of those that are due if `policy` is to kill. `is_in_container` decides whether a process
/// belongs to the container with a directory name. Returns that name for each process that was ended.
pub fn respond(violations: &[Violation], policy: OnViolation, is_in_container: impl Fn(&Process, &str) -> bool) -> Vec<String> {
    let mut ended = Vec::new();
    for violation in violations {
        if violation.is_new {
            log_new(violation);
        }
        if !violation.is_due || !kills(policy, violation.kind) {
            continue;
        }
        let Violation { id, name: container, .. } = violation;
        for offender in &violation.offenders {
            let (pid, program, kind) = (offender.pid, offender.name.as_str(), violation.kind.name());
            match kill(offender, |process| is_in_container(process, &violation.dir_name)) {
                Ok(false) => info!(container, id, pid, program, violation = kind, "process has exited or left the container"),
                Ok(true) => {
                    warn!(container, id, pid, program, violation = kind, "ended process");
                    ended.push(violation.dir_name.clone());
                }
                Err(error) => error!(container, id, pid, program, violation = kind, %error, "cannot end process"),
            }
        }
    }
    ended
}

fn kills(policy: OnViolation, kind: Kind) -> bool {
    match policy {
        OnViolation::Report => false,
        OnViolation::Kill => true,
        OnViolation::KillMemory => kind != Kind::OverTime,
    }
}

fn log_new(violation: &Violation) {
    let describe = |process: &Offender| format!("{} ({}, {} MiB)", process.pid, process.name, mib(process.held.unwrap_or(0)));
    let processes = violation.offenders.iter().map(describe).collect::<Vec<_>>().join(", ");
    let Violation { id, name: container, uuid: gpu, .. } = violation;
    let (held_mib, allowed_mib) = (mib(violation.held), violation.allowed.map(mib));
    match violation.kind {
        Kind::Over => warn!(container, id, gpu, held_mib, allowed_mib, processes, "container holds more memory than allowed"),
        Kind::Bypass => warn!(container, id, gpu, held_mib, allowed_mib, processes, "process bypasses the library"),
        Kind::OverTime => {
            let (used_percent, limit_percent) = violation.time.unwrap_or_default();
            warn!(container, id, gpu, used_percent, limit_percent, processes, "container uses more GPU time than its limit");
        }
    }
}

/// Kills a process if it is still the one that was meant and `belongs` holds for it. Returns whether it was killed.
///
/// # Errors
/// The kernel refuses the signal.
pub fn kill(offender: &Offender, belongs: impl Fn(&Process) -> bool) -> io::Result<bool> {
    let Some(pid) = i32::try_from(offender.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // The descriptor pins one process, so the identity is checked after it is opened.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(false),
        other => other?,
    };
    let is_meant = |found: Process| found.start_time == offender.start_time && !found.has_exited && belongs(&found);
    if !Process::read(offender.pid).is_some_and(is_meant) {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, Signal::KILL) {
        Err(Errno::SRCH) => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn policies_kill_for_their_kinds_of_violation() {
        let killed = |policy| Kind::ALL.map(|kind| kills(policy, kind));
        assert_eq!(killed(OnViolation::Report), [false, false, false]);
        assert_eq!(killed(OnViolation::Kill), [true, true, true]);
        assert_eq!(killed(OnViolation::KillMemory), [true, true, false]);
    }

    #[test]
    fn only_the_identified_process_is_killed() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let start_time = Process::read(child.id()).unwrap().start_time;
        let offender = Offender { pid: child.id(), start_time, name: "sleep".to_owned(), held: None };
        let cgroups = Process::read(std::process::id()).unwrap().cgroups;
        let is_child = |process: &Process| process.pid == offender.pid && process.cgroups == cgroups;
        assert!(!kill(&Offender { start_time: start_time + 1, ..offender.clone() }, is_child).unwrap(), "the PID was reused");
        assert!(!kill(&offender, |_| false).unwrap(), "the process left the container");
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(kill(&offender, is_child).unwrap());
        assert!(!child.wait().unwrap().success());
        assert!(!kill(&offender, is_child).unwrap(), "the process has exited");
    }
}
