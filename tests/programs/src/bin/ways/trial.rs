//! One way in chunks of one size, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use vgpu_test_programs::cuda::sys::{self, CUresult};
use vgpu_test_programs::cuda::{self, check, name};
use vgpu_test_programs::share::Share;
use vgpu_test_programs::take::{self, Way};
use vgpu_test_programs::watch::Watch;

const MIB: u64 = 1 << 20;
/// A step that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// What holds the process.
pub enum Bounds<'a> {
    /// The library, with a share of so many bytes.
    Library { library: &'a str, limit: u64 },
    /// What is free.
    Native,
}

/// What is tried.
pub struct Trial<'a> {
    pub way: &'a Way,
    pub chunk: u64,
    pub ordinal: i32,
    pub bounds: Bounds<'a>,
}

/// What came of it, bytes throughout.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What NVML showed when context and all were there.
    pub start: u64,
    /// What `cuMemGetInfo` said was free then.
    pub free: u64,
    /// Obtained in chunks, how many those were, and what smaller chunks gave on top.
    pub obtained: u64,
    pub count: u64,
    pub smaller: u64,
    /// The code that ended it; "missing" as well if the driver does not have this way.
    pub refused: String,
    /// What `cuMemAlloc` gave afterwards.
    pub rest: u64,
    /// By NVML, in the end and at most.
    pub end: u64,
    pub peak: u64,
    /// What went wrong otherwise.
    pub fault: Option<String>,
}

struct Process {
    process: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Process, String> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|why| why.to_string())?;
        let (input, output) = (process.stdin.take().ok_or("no pipe")?, process.stdout.take().ok_or("no pipe")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::<ChildStdout>::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Process { process, input, lines })
    }

    /// The words of its next line, which must begin with `what`.
    fn answer(&mut self, what: &str) -> Result<Vec<String>, String> {
        let line = self.lines.recv_timeout(PATIENCE).map_err(|_| format!("no {what}: it hangs or has crashed"))?;
        let mut words = line.split(' ').map(str::to_owned);
        if words.next().as_deref() == Some(what) { Ok(words.collect()) } else { Err(line) }
    }

    fn go_on(&mut self) -> Result<(), String> {
        self.input.write_all(b"\n").map_err(|why| why.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Trial<'_> {
    /// Runs it while somebody looks.
    pub fn run(&self, watch: &Watch) -> Outcome {
        let mut outcome = Outcome::default();
        watch.until_empty();
        watch.reset();
        if let Err(why) = self.follow(watch, &mut outcome) {
            outcome.fault = Some(why);
        }
        watch.until_empty();
        outcome.peak = watch.peak().0;
        outcome
    }

    fn follow(&self, watch: &Watch, outcome: &mut Outcome) -> Result<(), String> {
        let mut command = Command::new(std::env::current_exe().map_err(|why| why.to_string())?);
        command.args(["--child", self.way.name, "--chunk", &self.chunk.to_string(), "--gpu", &self.ordinal.to_string()]);
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
        process.go_on()?;
        let words = process.answer("took")?;
        (outcome.obtained, outcome.count, outcome.smaller) = (number(&words, 0), number(&words, 1), number(&words, 2));
        outcome.refused = words.get(3..).unwrap_or_default().join(" ");
        outcome.rest = number(&process.answer("rest")?, 0);
        process.answer("lives")?;
        outcome.end = watch.sum();
        process.go_on()
    }
}

/// The process that takes. It prints a line after each step, and goes on when it is told.
pub fn child(way: &str, chunk: u64, ordinal: i32) -> ExitCode {
    match take::find(way).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE).and_then(|way| steps(way, chunk, ordinal)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => {
            println!("ended with {}", name(code));
            ExitCode::FAILURE
        }
    }
}

fn told() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn steps(way: &Way, chunk: u64, ordinal: i32) -> Result<(), CUresult> {
    cuda::start(ordinal)?;
    // Memory that was there all the time must be whole in the end.
    let canary = plain(4096)?;
    let mut taker = match (way.prepare)(ordinal) {
        Ok(taker) => taker,
        Err(code) => {
            println!("ready {} {}", cuda::memory()?.0, name(code));
            told();
            return Ok(());
        }
    };
    println!("ready {}", cuda::memory()?.0);
    told();
    let (mut obtained, mut count) = (0, 0_u64);
    let code = loop {
        match taker(chunk as usize) {
            Ok(bytes) => (obtained, count) = (obtained + bytes, count + 1),
            Err(code) => break code,
        }
    };
    let (mut smaller, mut size) = (0, chunk / 2 / MIB * MIB);
    while size >= MIB && code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        match taker(size as usize) {
            Ok(bytes) => smaller += bytes,
            Err(_) => size = size / 2 / MIB * MIB,
        }
    }
    let missing = if count == 0 && take::is_missing(code) { " (missing)" } else { "" };
    println!("took {obtained} {count} {smaller} {}{missing}", name(code));
    let rest = everything();
    println!("rest {}", rest.iter().map(|&(_, bytes)| bytes).sum::<u64>());
    (way.finish)()?;
    lives(canary, rest.last().copied())?;
    println!("lives");
    told();
    Ok(())
}

/// Plain allocations until there is nothing left, by size: addresses and bytes.
fn everything() -> Vec<(u64, u64)> {
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
    // SAFETY: room for the answer.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })?;
    Ok(address)
}

/// The context works: memory can be written and read, and the last that was taken can be given back and taken again.
fn lives(canary: u64, last: Option<(u64, u64)>) -> Result<(), CUresult> {
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
