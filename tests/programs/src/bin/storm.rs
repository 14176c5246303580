//! Rounds of processes that race for memory, half of which are killed at a random moment; the others must then be able to take all that
//! is left, and nobody may hang.
//!
//!     storm --limit BYTES --context BYTES [--processes N] [--rounds K] [--spread MS] [--settled] [--slack BYTES] [--seed X]
//!         [--gpu ORDINAL]
//!     storm --native [--processes N] [--rounds K] [--spread MS] [--settled] [--seed X] [--gpu ORDINAL]
//!
//! A round: N processes start, allocate and free random sizes; after up to --spread milliseconds (50) half of them get SIGKILL, and are
//! reaped now or only at the end of the round. The rest free what they have and take chunk after chunk of 2 MiB until they are refused,
//! one after the other, again and again until nothing is left: what they obtained and their contexts (--context bytes each) fill --limit up to --slack (a
//! chunk). At the end one line of JSON tells the longest time from the killing to that moment. A round that does not get there in 30 s
//! ends the program with status 1. With --settled, the time to the killing counts from when all have their contexts: a real driver makes
//! those one after the other, and that is not what is measured. With --native nobody limits anything, and what is measured is how soon
//! NVML lists none of the killed any more: what a driver takes to have their memory back, before which nobody can have it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys};
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::random::Random;

/// What a process takes at a time when it takes all that is left: the driver's granule.
const CHUNK: u64 = 2 << 20;
/// A round that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let done = if arguments.has("child") { child(&arguments) } else { rounds(&arguments) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("storm: {}: {why}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

fn rounds(arguments: &Arguments) -> Result<(), String> {
    let rounds = arguments.number("rounds", 200);
    let mut random = Random::new(arguments.number("seed", 1));
    let (mut longest, mut killed) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let (took, dead) = one_round(arguments, &mut random).map_err(|why| format!("round {round}: {why}"))?;
        longest = longest.max(took);
        killed += dead;
    }
    println!("{{\"rounds\":{rounds},\"killed\":{killed},\"longest_ms\":{:.1}}}", longest.as_secs_f64() * 1000.0);
    Ok(())
}

/// How long it took the survivors to get everything, and how many processes were killed.
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
        victim.process.kill().map_err(|why| why.to_string())?;
        if reap {
            victim.process.wait().map_err(|why| why.to_string())?;
        }
    }
    racers.iter_mut().try_for_each(|racer| racer.tell(b"s"))?;
    let took = if arguments.has("native") { until_gone(arguments, &racers, at)? } else { until_full(arguments, &mut racers, at)? };
    for racer in racers {
        racer.end()?;
    }
    for mut victim in victims {
        victim.process.wait().map_err(|why| why.to_string())?;
    }
    Ok((took, killed))
}

/// How long after `at` NVML lists nobody but these.
fn until_gone(arguments: &Arguments, racers: &[Racer], at: Instant) -> Result<Duration, String> {
    let nvml = Nvml::open(arguments.number("gpu", 0) as u32)?;
    let alive: Vec<u32> = racers.iter().map(|racer| racer.process.id()).collect();
    while nvml.processes().iter().any(|(pid, _)| !alive.contains(pid)) {
        if at.elapsed() > PATIENCE {
            return Err("NVML still lists the killed".to_string());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(at.elapsed())
}

/// How long after `at` the racers have everything.
fn until_full(arguments: &Arguments, racers: &mut [Racer], at: Instant) -> Result<Duration, String> {
    let (limit, context) = (arguments.number("limit", 0), arguments.number("context", 0));
    loop {
        let held = racers.iter_mut().map(|racer| racer.fill(context)).sum::<Result<u64, String>>()?;
        if held > limit {
            return Err(format!("{held} bytes were obtained of {limit}"));
        }
        if limit - held < arguments.number("slack", CHUNK) {
            return Ok(at.elapsed());
        }
        if at.elapsed() > PATIENCE {
            return Err(format!("{held} bytes are all that can be had of {limit}, {:?} after the killing", at.elapsed()));
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
        let own = std::env::current_exe().map_err(|why| why.to_string())?;
        let gpu = arguments.number("gpu", 0).to_string();
        let mut command = Command::new(own);
        command.args(["--child", "--seed", &seed.to_string(), "--gpu", &gpu]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.args(arguments.has("settled").then_some("--settled"));
        let mut process = command.spawn().map_err(|why| why.to_string())?;
        let answers = BufReader::new(process.stdout.take().ok_or("no pipe")?);
        Ok(Racer { process, answers })
    }

    /// Lets it take all that it can get, and gives what it holds then, its context included.
    fn fill(&mut self, context: u64) -> Result<u64, String> {
        self.tell(b"f")?;
        let line = self.answer()?;
        let (contexts, bytes) = line.trim().split_once(' ').ok_or("a process ended by itself")?;
        let number = |text: &str| text.parse::<u64>().map_err(|why| why.to_string());
        Ok(number(contexts)? * context + number(bytes)?)
    }

    fn tell(&mut self, what: &[u8]) -> Result<(), String> {
        self.process.stdin.as_mut().ok_or("no pipe")?.write_all(what).map_err(|why| why.to_string())
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|why| why.to_string())?;
        Ok(line)
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.process.stdin.take());
        let status = self.process.wait().map_err(|why| why.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("a process ended with {status}")) }
    }
}

/// Races until its standard input says something; fills at every `f`; ends at its end.
fn child(arguments: &Arguments) -> Result<(), String> {
    let ordinal = arguments.number("gpu", 0) as i32;
    let mut random = Random::new(arguments.number("seed", 1));
    let (mut started, mut held) = (false, Vec::new());
    while !told() {
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
    let mut told = [0];
    while std::io::stdin().read(&mut told).is_ok_and(|bytes| bytes == 1) {
        if told != *b"f" {
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

/// Whether standard input has something to read, or has ended.
fn told() -> bool {
    let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, as the count says.
    unsafe { libc::poll(&raw mut input, 1, 0) == 1 }
}

/// Makes a context; `false` if there is no memory for one now.
fn start(ordinal: i32) -> Result<bool, String> {
    granted(cuda::start(ordinal).map(|_| ())).map(|started| started.is_some())
}

fn allocate(bytes: u64) -> Result<Option<u64>, String> {
    let mut address = 0;
    // SAFETY: room for the answer.
    granted(check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })).map(|granted| granted.map(|()| address))
}

fn free(address: u64) -> Result<(), String> {
    // SAFETY: the address was allocated and not freed yet.
    check(unsafe { sys::cuMemFree_v2(address) }).map_err(cuda::name)
}

/// Out of memory is an answer, everything else an error.
fn granted(answer: Result<(), sys::CUresult>) -> Result<Option<()>, String> {
    match answer {
        Ok(()) => Ok(Some(())),
        Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Ok(None),
        Err(code) => Err(cuda::name(code)),
    }
}
