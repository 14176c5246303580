//! The process whose memory moves, as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::{Orders, Share};

/// Time for which the last order of an arbiter that is gone is left to the process before it has to end.
const LAST_ORDER: Duration = Duration::from_millis(200);

/// The process, which is killed on drop.
pub struct Process<'a> {
    share: &'a Share,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'a> Process<'a> {
    /// Starts a process in a share, with the options of this one but another seed, and waits until its threads run.
    pub fn start(arguments: &Arguments, share: &'a Share, seed: u64) -> Result<Self, String> {
        let library = arguments.value("library").ok_or("--library: expected a file")?;
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        // The first value of an option counts.
        command.args(["--child", "--seed", &seed.to_string()]).args(std::env::args().skip(1));
        let command = share.limits(library, &mut command).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let (input, output) = (process.stdin.take().ok_or("no input")?, process.stdout.take().ok_or("no output")?);
        let mut started = Self { share, process, input, output: BufReader::new(output) };
        started.line()?;
        Ok(started)
    }

    /// Returns its PID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns an error if it has ended.
    pub fn check_runs(&mut self) -> Result<(), String> {
        match self.process.try_wait().map_err(|error| error.to_string())? {
            Some(status) => Err(format!("the second process ended: {status}")),
            None => Ok(()),
        }
    }

    /// Kills it. Returns an error if it had ended before.
    pub fn kill(mut self) -> Result<(), String> {
        self.process.kill().map_err(|error| error.to_string())?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        if status.signal() == Some(libc::SIGKILL) { Ok(()) } else { Err(format!("the second process ended: {status}")) }
    }

    /// Leaves the order of an arbiter behind that is gone, for which the process must not wait, and ends it ([`Process::end`]).
    pub fn end_without_arbiter(self) -> Result<String, String> {
        Orders::abandon(self.share)?;
        std::thread::sleep(LAST_ORDER);
        self.end()
    }

    /// Lets it free everything, checks the account, and lets it end. Returns what it says, a part of a line of JSON.
    pub fn end(mut self) -> Result<String, String> {
        self.tell_to_end()?;
        let said = self.line()?;
        check_account(self.share)?;
        self.tell_to_end()?;
        let status = self.process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(said) } else { Err(format!("the second process: {status}")) }
    }

    /// Lets it go on to its end.
    fn tell_to_end(&mut self) -> Result<(), String> {
        writeln!(self.input, "end").map_err(|error| error.to_string())
    }

    /// Returns its next line.
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim_end().to_owned()),
            _ => Err("the second process ended".to_owned()),
        }
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        // Without effect if it has been waited for.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Returns an error unless the account of a share has only what processes without allocations have, and nothing of dead ones.
fn check_account(share: &Share) -> Result<(), String> {
    let account = share.ledger()?;
    let held: u64 = account.processes.iter().map(|held| held.bytes - held.overhead).sum();
    if held != 0 {
        return Err(format!("the account has {held} bytes after everything was freed: {account:?}"));
    }
    let living: u64 = account.processes.iter().map(|held| held.bytes).sum();
    if account.total != living || account.spilled != 0 {
        return Err(format!(
            "the account has {} bytes that no process holds: {account:?}",
            account.total.abs_diff(living) + account.spilled
        ));
    }
    Ok(())
}
