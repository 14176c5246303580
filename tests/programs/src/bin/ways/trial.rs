//! One method with one chunk size, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};
use vgpu_test_programs::methods::{self, Method};
use vgpu_test_programs::share::Share;
use vgpu_test_programs::watch::Watch;

const MIB: u64 = 1 << 20;
/// Time after which a step counts as hanging.
const STEP_TIMEOUT: Duration = Duration::from_secs(90);

/// What limits the process.
pub enum Bounds<'a> {
    /// The library, with a share of `limit` bytes.
    Library { library: &'a str, limit: u64 },
    /// The free memory of the GPU.
    Native,
}

/// What to try.
pub struct Trial<'a> {
    pub method: &'a Method,
    pub chunk: u64,
    pub ordinal: i32,
    pub bounds: Bounds<'a>,
}

/// The outcome, in bytes.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// NVML's figure when the method was prepared.
    pub start: u64,
    /// Free memory by `cuMemGetInfo` at that time.
    pub free: u64,
    /// Bytes obtained in chunks, the number of chunks, and bytes obtained in smaller chunks afterwards.
    pub obtained: u64,
    pub count: u64,
    pub smaller: u64,
    /// The code of the last failure; with "(missing)" if the driver does not have this method.
    pub refused: String,
    /// Bytes that `cuMemAlloc` obtained afterwards.
    pub rest: u64,
    /// NVML's figure at the end, and its peak.
    pub end: u64,
    pub peak: u64,
    /// Any other failure.
    pub fault: Option<String>,
}

struct Process {
    process: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Process, String> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let (input, output) = (process.stdin.take().ok_or("no pipe")?, process.stdout.take().ok_or("no pipe")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::<ChildStdout>::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Process { process, input, lines })
    }

    /// Returns the words of the next line, which must begin with `what`.
    fn answer(&mut self, what: &str) -> Result<Vec<String>, String> {
        let line = self.lines.recv_timeout(STEP_TIMEOUT).map_err(|_| format!("no {what}: the process hangs or has crashed"))?;
        let mut words = line.split(' ').map(str::to_owned);
        if words.next().as_deref() == Some(what) { Ok(words.collect()) } else { Err(line) }
    }

    fn resume(&mut self) -> Result<(), String> {
        self.input.write_all(b"\n").map_err(|error| error.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Trial<'_> {
    /// Runs the trial and samples NVML meanwhile.
    pub fn run(&self, watch: &Watch) -> Outcome {
        let mut outcome = Outcome::default();
        watch.until_empty();
        watch.reset();
        if let Err(error) = self.follow(watch, &mut outcome) {
            outcome.fault = Some(error);
        }
        watch.until_empty();
        outcome.peak = watch.peak().0;
        outcome
    }

    fn follow(&self, watch: &Watch, outcome: &mut Outcome) -> Result<(), String> {
        let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        command.args(["--child", self.method.name, "--chunk", &self.chunk.to_string(), "--gpu", &self.ordinal.to_string()]);
        let share = match self.bounds {
            Bounds::Library { limit, .. } => Some(Share::make(limit)?),
            Bounds::Native => None,
        };
        if let (Bounds::Library { library, .. }, Some(share)) = (&self.bounds, &share) {
            share.limits(library, &mut command);
        }
        let mut process = Process::start(&mut command)?;
        let number = |words: &[String], at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0_u64);
        let words = process.answer("ready")?;
        outcome.free = number(&words, 0);
        outcome.start = watch.sum();
        if let Some(code) = words.get(1) {
            outcome.refused = format!("{code} (missing)");
            return Ok(());
        }
        process.resume()?;
        let words = process.answer("took")?;
        (outcome.obtained, outcome.count, outcome.smaller) = (number(&words, 0), number(&words, 1), number(&words, 2));
        outcome.refused = words.get(3..).unwrap_or_default().join(" ");
        outcome.rest = number(&process.answer("rest")?, 0);
        process.answer("lives")?;
        outcome.end = watch.sum();
        process.resume()
    }
}

/// Runs the allocating process. It prints a line after each step and waits for a line of input.
pub fn child(method: &str, chunk: u64, ordinal: i32) -> ExitCode {
    match methods::find(method).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE).and_then(|method| steps(method, chunk, ordinal)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            println!("ended with {}", name(code));
            ExitCode::FAILURE
        }
    }
}

fn wait_for_line() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn steps(method: &Method, chunk: u64, ordinal: i32) -> Result<(), CUresult> {
    cuda::start(ordinal)?;
    // Memory that exists throughout must be intact in the end.
    let canary = plain(4096)?;
    let mut allocate = match (method.prepare)(ordinal) {
        Ok(allocate) => allocate,
        Err(code) => {
            println!("ready {} {}", cuda::memory()?.0, name(code));
            wait_for_line();
            return Ok(());
        }
    };
    println!("ready {}", cuda::memory()?.0);
    wait_for_line();
    let (mut obtained, mut count) = (0, 0_u64);
    let code = loop {
        match allocate(chunk as usize) {
            Ok(bytes) => (obtained, count) = (obtained + bytes, count + 1),
            Err(code) => break code,
        }
    };
    let (mut smaller, mut size) = (0, chunk / 2 / MIB * MIB);
    while size >= MIB && code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        match allocate(size as usize) {
            Ok(bytes) => smaller += bytes,
            Err(_) => size = size / 2 / MIB * MIB,
        }
    }
    let missing = if count == 0 && methods::is_missing(code) { " (missing)" } else { "" };
    println!("took {obtained} {count} {smaller} {}{missing}", name(code));
    let rest = allocate_remainder();
    println!("rest {}", rest.iter().map(|&(_, bytes)| bytes).sum::<u64>());
    (method.finish)()?;
    check_context(canary, rest.last().copied())?;
    println!("lives");
    wait_for_line();
    Ok(())
}

/// Makes plain allocations, smaller and smaller, until nothing is left. Returns addresses and bytes.
fn allocate_remainder() -> Vec<(u64, u64)> {
    let (mut list, mut size) = (Vec::new(), 64 * MIB);
    while size >= MIB {
        match plain(size) {
            Ok(address) => list.push((address, size)),
            Err(_) => size /= 2,
        }
    }
    list
}

fn plain(bytes: u64) -> Result<u64, CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })?;
    Ok(address)
}

/// Checks that the context works: memory can be written and read, and the last allocation can be freed and made again.
fn check_context(canary: u64, last: Option<(u64, u64)>) -> Result<(), CUresult> {
    let mut read = [0_u8; 4096];
    // SAFETY: the canary is as long as what is written and read; the last allocation is freed once.
    unsafe {
        check(sys::cuMemsetD8_v2(canary, 0x5a, read.len()))?;
        check(sys::cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), canary, read.len()))?;
        if let Some((address, bytes)) = last {
            check(sys::cuMemFree_v2(address))?;
            plain(bytes)?;
        }
    }
    cuda::synchronize()?;
    cuda::memory()?;
    if read.iter().all(|&byte| byte == 0x5a) { Ok(()) } else { Err(CUresult::CUDA_ERROR_ILLEGAL_STATE) }
}
