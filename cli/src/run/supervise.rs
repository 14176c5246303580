//! Runs a process in the foreground: forwards signals to it, and ends as it does.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Signals that are forwarded.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Runs a command. Returns its exit status, or 128+N if signal N ended it.
pub(super) fn run(mut command: Command) -> io::Result<ExitCode> {
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status")?);
    // A handler would make the program get signals that it was to ignore, as under nohup(1).
    let forwarded = FORWARDED.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(forwarded.chain([SIGCHLD]))?;
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    for signal in signals.forever() {
        if let Some(status) = child.try_wait()? {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        }
        let is_ours = signal != SIGCHLD && !(matches!(signal, SIGINT | SIGQUIT) && is_in_foreground());
        if let (Some(pid), Some(signal), true) = (pid, Signal::from_named_raw(signal), is_ours) {
            // It has not been waited for, so the PID is its own.
            let _ = kill_process(pid, signal);
        }
    }
    Err(io::Error::other("no more signals"))
}

/// Returns whether this process is in the foreground of a terminal. Then the terminal sends SIGINT and SIGQUIT to the program, too, and
/// programs take a second one as a demand to stop without cleaning up.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty").ok();
    terminal.and_then(|terminal| tcgetpgrp(terminal).ok()) == Some(getpgrp())
}

/// Returns the set of signals that a process with this `/proc/PID/status` ignores; bit 0 is signal 1.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_the_childs() {
        let of = |script: &str| {
            run({
                let mut command = Command::new("/bin/sh");
                command.args(["-c", script]);
                command
            })
        };
        assert_eq!(of("exit 7").unwrap(), ExitCode::from(7));
        assert_eq!(of("kill -9 $$").unwrap(), ExitCode::from(137));
        assert!(run(Command::new("/nowhere")).is_err());
    }

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\tffff\n"), 1 | 1 << 12);
        assert_eq!(ignored(""), 0);
    }
}
