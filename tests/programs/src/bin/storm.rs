//! Rounds of processes that race for memory. Half of them are killed at a random moment; the others must then be able to allocate all
//! remaining memory, and no process may hang.
//!
//!     storm --limit BYTES --context BYTES [--processes N] [--rounds K] [--spread MS] [--settled] [--slack BYTES] [--seed X]
//!         [--gpu ORDINAL]
//!     storm --native [--processes N] [--rounds K] [--spread MS] [--settled] [--seed X] [--gpu ORDINAL]
//!
//! A round: N processes start, allocate and free random sizes. After up to --spread milliseconds (default: 50) half of them get
//! SIGKILL; each is reaped at once or only at the end of the round. The others free what they have. Then they allocate chunks of 2 MiB
//! until they are refused, one process after the other, repeatedly, until nothing is left: their allocations and contexts (--context
//! bytes each) must fill --limit up to --slack (default: one chunk). A round that does not get there in 30 s ends the program with
//! status 1. At the end one line of JSON has the longest time from the kill to that moment.
//!
//! With --settled, the time to the kill counts from when all processes have their contexts: a real driver creates contexts one after
//! the other, which is not what is measured. With --native there is no limit, and the time is measured until NVML lists none of the
//! killed processes: what the driver itself takes to reclaim their memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys};
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::random::Random;

/// Size of the allocations that use up the remaining memory: the driver's granule.
const CHUNK: u64 = 2 << 20;
/// Time after which a round has failed.
const ROUND_TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let done = if arguments.has("child") { child(&arguments) } else { rounds(&arguments) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storm: {}: {error}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

fn rounds(arguments: &Arguments) -> Result<(), String> {
    let rounds = arguments.number("rounds", 200);
    let mut random = Random::new(arguments.number("seed", 1));
    let (mut longest, mut killed) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let (took, dead) = one_round(arguments, &mut random).map_err(|error| format!("round {round}: {error}"))?;
        longest = longest.max(took);
        killed += dead;
    }
    println!("{{\"rounds\":{rounds},\"killed\":{killed},\"longest_ms\":{:.1}}}", longest.as_secs_f64() * 1000.0);
    Ok(())
}

/// Runs one round. Returns how long the survivors took to get everything, and how many processes were killed.
fn one_round(arguments: &Arguments, random: &mut Random) -> Result<(Duration, usize), String> {
    let processes = arguments.number("processes", 32);
    let mut racers = (0..processes).map(|_| Racer::start(arguments, random.draw())).collect::<Result<Vec<_>, _>>()?;
    if arguments.has("settled") {
        racers.iter_mut().try_for_each(|racer| racer.answer().map(|_| ()))?;
    }
    std::thread::sleep(Duration::from_micros(random.draw() % (arguments.number("spread", 50) * 1000)));
    let mut victims = Vec::new();
    while victims.len() < processes as usize / 2 {
        victims.push(racers.swap_remove(random.draw() as usize % racers.len()));
    }
    let (killed, at) = (victims.len(), Instant::now());
    let reap = random.draw().is_multiple_of(2);
    for victim in &mut victims {
        victim.process.kill().map_err(|error| error.to_string())?;
        if reap {
            victim.process.wait().map_err(|error| error.to_string())?;
        }
    }
    racers.iter_mut().try_for_each(|racer| racer.tell(b"s"))?;
    let took = if arguments.has("native") { until_gone(arguments, &racers, at)? } else { until_full(arguments, &mut racers, at)? };
    for racer in racers {
        racer.end()?;
    }
    for mut victim in victims {
        victim.process.wait().map_err(|error| error.to_string())?;
    }
    Ok((took, killed))
}

/// Returns how long after `at` NVML lists no process but these.
fn until_gone(arguments: &Arguments, racers: &[Racer], at: Instant) -> Result<Duration, String> {
    let nvml = Nvml::open(arguments.number("gpu", 0) as u32)?;
    let alive: Vec<u32> = racers.iter().map(|racer| racer.process.id()).collect();
    while nvml.processes().iter().any(|(pid, _)| !alive.contains(pid)) {
        if at.elapsed() > ROUND_TIMEOUT {
            return Err("NVML still lists killed processes".to_string());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(at.elapsed())
}

/// Returns how long after `at` the racers have everything.
fn until_full(arguments: &Arguments, racers: &mut [Racer], at: Instant) -> Result<Duration, String> {
    let (limit, context) = (arguments.number("limit", 0), arguments.number("context", 0));
    loop {
        let held = racers.iter_mut().map(|racer| racer.fill(context)).sum::<Result<u64, String>>()?;
        if held > limit {
            return Err(format!("obtained {held} bytes: expected {limit}"));
        }
        if limit - held < arguments.number("slack", CHUNK) {
            return Ok(at.elapsed());
        }
        if at.elapsed() > ROUND_TIMEOUT {
            return Err(format!("{held} bytes are available of {limit}, {:?} after the kill", at.elapsed()));
        }
    }
}

/// One of the processes, as its parent sees it.
struct Racer {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn start(arguments: &Arguments, seed: u64) -> Result<Racer, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let gpu = arguments.number("gpu", 0).to_string();
        let mut command = Command::new(own);
        command.args(["--child", "--seed", &seed.to_string(), "--gpu", &gpu]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.args(arguments.has("settled").then_some("--settled"));
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let answers = BufReader::new(process.stdout.take().ok_or("no pipe")?);
        Ok(Racer { process, answers })
    }

    /// Lets the process allocate all that it can get. Returns what it holds then, its context included.
    fn fill(&mut self, context: u64) -> Result<u64, String> {
        self.tell(b"f")?;
        let line = self.answer()?;
        let (contexts, bytes) = line.trim().split_once(' ').ok_or("a process ended unexpectedly")?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        Ok(number(contexts)? * context + number(bytes)?)
    }

    fn tell(&mut self, what: &[u8]) -> Result<(), String> {
        self.process.stdin.as_mut().ok_or("no pipe")?.write_all(what).map_err(|error| error.to_string())
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        Ok(line)
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.process.stdin.take());
        let status = self.process.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a process ended with {status}")) }
    }
}

/// Races until its standard input has a line; fills at every `f`; ends at the end of the input.
fn child(arguments: &Arguments) -> Result<(), String> {
    let ordinal = arguments.number("gpu", 0) as i32;
    let mut random = Random::new(arguments.number("seed", 1));
    let (mut started, mut held) = (false, Vec::new());
    while !has_input() {
        if !started {
            started = start(ordinal)?;
            if started && arguments.has("settled") {
                println!("started");
            }
        } else if held.len() > 8 || (!held.is_empty() && random.draw().is_multiple_of(2)) {
            free(held.swap_remove(random.draw() as usize % held.len()))?;
        } else {
            held.extend(allocate(random.draw() % (16 << 20) + 1)?);
        }
    }
    while let Some(address) = held.pop() {
        free(address)?;
    }
    let mut command = [0];
    while std::io::stdin().read(&mut command).is_ok_and(|bytes| bytes == 1) {
        if command != *b"f" {
            continue;
        }
        started = started || start(ordinal)?;
        while started && let Some(address) = allocate(CHUNK)? {
            held.push(address);
        }
        println!("{} {}", u8::from(started), held.len() as u64 * CHUNK);
    }
    Ok(())
}

/// Returns whether standard input has something to read or has ended.
fn has_input() -> bool {
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, as the count says.
    unsafe { libc::poll(&raw mut input, 1, 0) == 1 }
}

/// Creates a context; returns `false` if there is no memory for one now.
fn start(ordinal: i32) -> Result<bool, String> {
    granted(cuda::start(ordinal).map(|_| ())).map(|started| started.is_some())
}

fn allocate(bytes: u64) -> Result<Option<u64>, String> {
    let mut address = 0;
    // SAFETY: the out-pointer is valid.
    granted(check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })).map(|granted| granted.map(|()| address))
}

fn free(address: u64) -> Result<(), String> {
    // SAFETY: the address was allocated and not freed yet.
    check(unsafe { sys::cuMemFree_v2(address) }).map_err(cuda::name)
}

/// Returns `None` for out of memory, and every other failure as an error.
fn granted(answer: Result<(), sys::CUresult>) -> Result<Option<()>, String> {
    match answer {
        Ok(()) => Ok(Some(())),
        Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Ok(None),
        Err(code) => Err(cuda::name(code)),
    }
}
