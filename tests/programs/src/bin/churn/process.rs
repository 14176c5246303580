//! One of the processes, as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::Share;

pub struct Process {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub seed: u64,
}

impl Process {
    /// Starts a process, under the share if there is a library. With seed 0 it takes no steps.
    pub fn start(arguments: &Arguments, share: &Share, library: Option<&str>, seed: u64) -> Result<Process, String> {
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        let steps = if seed == 0 { 0 } else { arguments.number("steps", 3000) };
        let (limit, gpu) = (arguments.number("limit", 8 << 30), arguments.number("gpu", 0));
        let threads = if seed == 0 { 1 } else { arguments.number("threads", 1) };
        for (name, value) in [("--seed", seed), ("--steps", steps), ("--limit", limit), ("--gpu", gpu), ("--threads", threads)] {
            command.args([name, &value.to_string()]);
        }
        arguments.values("without").for_each(|kind| _ = command.args(["--without", kind]));
        command.arg("--child").stdin(Stdio::piped()).stdout(Stdio::piped());
        match library {
            Some(library) => share.limits(library, &mut command),
            None => command.arg("--native"),
        };
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let (input, output) = (process.stdin.take().ok_or("no pipe")?, process.stdout.take().ok_or("no pipe")?);
        Ok(Process { process, input, output: BufReader::new(output), seed })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process has its context.
    pub fn wait(&mut self) -> Result<(), String> {
        self.answer("started").map(|_| ())
    }

    pub fn tell(&mut self, what: &str) -> Result<(), String> {
        writeln!(self.input, "{what}").map_err(|error| error.to_string())
    }

    /// Returns the numbers in the next line, which must begin with `what`.
    pub fn answer(&mut self, what: &str) -> Result<Vec<u64>, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        let mut words = line.split_whitespace();
        if words.next() != Some(what) {
            let ended = if line.is_empty() { self.process.wait().map_err(|error| error.to_string())?.to_string() } else { line };
            return Err(format!("process {} with seed {} ended before `{what}`: {ended}", self.id(), self.seed));
        }
        Ok(words.filter_map(|word| word.parse().ok()).collect())
    }

    pub fn end(self) -> Result<(), String> {
        let Process { mut process, input, .. } = self;
        drop(input);
        let status = process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("process {} ended with {status}", process.id())) }
    }
}
