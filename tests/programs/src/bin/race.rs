//! Many processes that allocate and free at once: for tests that kill some of them, and to check that they keep a common limit.
//!
//!     race --processes N [--threads T] [--seconds S | --rounds K | --allocations K] [--chunk MAX_BYTES] [--seed X] [--gpu ORDINAL] [--keep]
//!         [--library libvgpu.so --limit BYTES | --native]
//!
//! Starts itself N times and prints `child PID` for each. Every thread (default: 1) of every child allocates and frees random sizes up
//! to MAX_BYTES until its time, rounds or allocations are over. At the end each child prints `done PID rounds allocated refused`. With
//! --keep it then allocates all that it can get, prints `filled PID bytes`, and waits for its standard input to end. Any error but
//! out-of-memory ends a child with status 1.
//!
//! With a library, the children share --limit bytes, start only when all have their contexts, and NVML is sampled continuously. Then
//! the output is a line of JSON with the peak and the duration; a peak above the limit gives status 1. With --native it does the same
//! without a library, for comparison.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys};
use vgpu_test_programs::random::Random;
use vgpu_test_programs::share::Share;
use vgpu_test_programs::watch::Watch;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return child(&arguments);
    }
    match race(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("race: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all children succeeded and kept the limit.
fn race(arguments: &Arguments) -> Result<bool, String> {
    let limit = arguments.number("limit", u64::MAX);
    let library = arguments.value("library");
    let watch = if is_watched(arguments) { Some(Watch::start(arguments.number("gpu", 0) as u32)?) } else { None };
    let share = Share::make(limit)?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = |number: u64| {
        let seed = arguments.number("seed", 1).wrapping_mul(1000) + number;
        let mut command = Command::new(&own);
        command.arg("--child").args(std::env::args().skip(1)).args(["--own-seed", &seed.to_string()]);
        if watch.is_some() {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        }
        if let Some(library) = library {
            share.limits(library, &mut command);
        }
        command.spawn().map_err(|error| error.to_string())
    };
    let processes = arguments.number("processes", 8);
    let mut children = (0..processes).map(start).collect::<Result<Vec<_>, _>>()?;
    let Some(watch) = watch else {
        children.iter().for_each(|child| println!("child {}", child.id()));
        return Ok(all_succeeded(&mut children));
    };
    let begin = Instant::now();
    let gone = |children: &mut Vec<Child>| children.iter_mut().any(|child| child.try_wait().is_ok_and(|ended| ended.is_some()));
    while watch.processes().len() < children.len() && begin.elapsed() < Duration::from_secs(120) {
        if gone(&mut children) {
            return Err("a process had no memory for its context".to_string());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let outputs = children.iter_mut().filter_map(|child| child.stdout.take()).collect::<Vec<_>>();
    for output in outputs {
        let _ = BufReader::new(output).read_line(&mut String::new());
    }
    let took = begin.elapsed().as_secs_f64();
    let well = all_succeeded(&mut children);
    let ((peak, samples), refused) = (watch.peak(), if library.is_some() { share.ledger()?.refused } else { 0 });
    println!(
        "{{\"processes\":{processes},\"limit\":{limit},\"peak\":{peak},\"samples\":{samples},\"refused\":{refused},\"seconds\":{took:.2}}}"
    );
    Ok(well && (peak <= limit || library.is_none()))
}

/// Returns whether NVML is sampled and all children start together.
fn is_watched(arguments: &Arguments) -> bool {
    arguments.has("native") || arguments.value("library").is_some()
}

fn all_succeeded(children: &mut [Child]) -> bool {
    let statuses = children.iter_mut().filter_map(|child| Child::wait(child).ok());
    statuses.filter(|status| status.code() == Some(1)).count() == 0
}

fn child(arguments: &Arguments) -> ExitCode {
    match allocate_and_free(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
            println!("refused {}", std::process::id());
            ExitCode::SUCCESS
        }
        Err(code) => {
            eprintln!("race: {}: {}", std::process::id(), cuda::name(code));
            ExitCode::FAILURE
        }
    }
}

fn allocate_and_free(arguments: &Arguments) -> Result<(), sys::CUresult> {
    let context = cuda::start(arguments.number("gpu", 0) as i32)? as usize;
    if is_watched(arguments) {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    }
    let thread = |number| {
        // SAFETY: the primary context lives as long as the process.
        check(unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) })?;
        one_thread(arguments, number)
    };
    let told = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.number("threads", 1)).map(|number| scope.spawn(move || thread(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(sys::CUresult::CUDA_ERROR_UNKNOWN))).collect::<Result<Vec<_>, _>>()
    })?;
    let (round, allocated, refused) = told.iter().fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
    println!("done {} {round} {allocated} {refused}", std::process::id());
    if arguments.has("keep") {
        let (mut bytes, largest) = (0, largest(arguments));
        while allocate(largest).is_ok() {
            bytes += largest;
        }
        println!("filled {} {bytes}", std::process::id());
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    }
    Ok(())
}

fn largest(arguments: &Arguments) -> u64 {
    arguments.number("chunk", 8 << 20).max(1)
}

/// Returns the numbers of rounds, allocations and refusals.
fn one_thread(arguments: &Arguments, number: u64) -> Result<(u64, u64, u64), sys::CUresult> {
    let largest = largest(arguments);
    let allocations = arguments.number("allocations", u64::MAX);
    let rounds = arguments.number("rounds", if arguments.has("seconds") || arguments.has("allocations") { u64::MAX } else { 1000 });
    let until = Instant::now() + Duration::from_secs(arguments.number("seconds", 3600));
    let mut random = Random::new(arguments.number("own-seed", 1) + (number << 32));
    let mut held = Vec::new();
    let (mut round, mut allocated, mut refused) = (0, 0_u64, 0_u64);
    while round < rounds && allocated + refused < allocations && Instant::now() < until {
        round += 1;
        if !held.is_empty() && random.draw().is_multiple_of(2) {
            let address = held.swap_remove(random.draw() as usize % held.len());
            // SAFETY: the address was allocated and not freed yet.
            check(unsafe { sys::cuMemFree_v2(address) })?;
            continue;
        }
        match allocate(random.draw() % largest + 1) {
            Ok(address) => {
                held.push(address);
                allocated += 1;
            }
            Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => refused += 1,
            Err(code) => return Err(code),
        }
    }
    Ok((round, allocated, refused))
}

fn allocate(bytes: u64) -> Result<u64, sys::CUresult> {
    let mut address = 0;
    // SAFETY: the out-pointer is valid.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })?;
    Ok(address)
}
