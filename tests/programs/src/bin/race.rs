//! Many processes that allocate and free at once, for tests that kill some of them.
//!
//!     race --processes N [--seconds S | --rounds K] [--chunk MAX_BYTES] [--seed X] [--gpu ORDINAL] [--keep]
//!
//! Starts itself N times and prints `child PID` for each; every child allocates and frees random sizes up to MAX_BYTES until its time or
//! rounds are over. At the end each child prints `done PID rounds allocated refused`; with --keep it then fills what it can get, prints
//! `filled PID bytes`, and waits for its standard input to end. Any error but out-of-memory ends a child with status 1.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, check, sys};

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return child(&arguments);
    }
    let own = std::env::current_exe().expect("this program has a path");
    let start = |number: u64| {
        let seed = arguments.number("seed", 1).wrapping_mul(1000) + number;
        let inherited = std::env::args().skip(1);
        Command::new(&own).arg("--child").args(inherited).args(["--own-seed", &seed.to_string()]).spawn()
    };
    let children = (0..arguments.number("processes", 8)).map(start).collect::<Result<Vec<_>, _>>();
    let mut children = match children {
        Ok(children) => children,
        Err(error) => {
            eprintln!("race: {error}");
            return ExitCode::FAILURE;
        }
    };
    for child in &children {
        println!("child {}", child.id());
    }
    let failed = children.iter_mut().filter_map(|child| child.wait().ok()).filter(|status| status.code() == Some(1)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    cuda::start(arguments.number("gpu", 0) as i32)?;
    let largest = arguments.number("chunk", 8 << 20).max(1);
    let rounds = arguments.number("rounds", if arguments.has("seconds") { u64::MAX } else { 1000 });
    let until = Instant::now() + Duration::from_secs(arguments.number("seconds", 3600));
    let mut random = Random(arguments.number("own-seed", 1) * 2 + 1);
    let mut held = Vec::new();
    let (mut round, mut allocated, mut refused) = (0, 0_u64, 0_u64);
    while round < rounds && Instant::now() < until {
        round += 1;
        if !held.is_empty() && random.next().is_multiple_of(2) {
            let address = held.swap_remove(random.next() as usize % held.len());
            // SAFETY: the address was allocated and not freed yet.
            check(unsafe { sys::cuMemFree_v2(address) })?;
            continue;
        }
        match allocate(random.next() % largest + 1) {
            Ok(address) => {
                held.push(address);
                allocated += 1;
            }
            Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => refused += 1,
            Err(code) => return Err(code),
        }
    }
    println!("done {} {round} {allocated} {refused}", std::process::id());
    if arguments.has("keep") {
        let mut bytes = 0;
        while allocate(largest).is_ok() {
            bytes += largest;
        }
        println!("filled {} {bytes}", std::process::id());
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    }
    Ok(())
}

fn allocate(bytes: u64) -> Result<u64, sys::CUresult> {
    let mut address = 0;
    // SAFETY: room for the answer.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) })?;
    Ok(address)
}

/// xorshift64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 3
    }
}
