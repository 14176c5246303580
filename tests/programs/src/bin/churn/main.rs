//! Several processes under one share allocate and free memory at random by many calls; then the accounts must equal what NVML lists.
//!
//!     churn --library libvgpu.so [--limit BYTES] [--processes N] [--threads T] [--steps K] [--seed X] [--rounds R] [--gpu ORDINAL]
//!           [--without KIND] [--moves]
//!
//! Each process, or each of its T threads, does K steps that its seed determines. Then all stop, and each requests once more than there
//! is (before the refusal, the library reconciles its account with NVML). For each process and for all together, the account may
//! differ by at most one granule of 2 MiB from what NVML lists for this program, which runs without the library. Then they free
//! everything and are compared again. At last they end, and a new process must find the account right. NVML is sampled continuously
//! and may never list more than the limit (default: 8 GiB). Each further round has the next seed.
//!
//! Status 1 if any comparison fails or a call returns an unexpected code. With --native there is no library and no comparison, only a
//! test of the driver. A process that a signal ends first prints what it was doing. `--without`, which may be repeated, leaves out
//! kinds of objects and steps ([`objects::KINDS`]), to find the one that crashes it. With `--moves`, memory that can move is moved to the
//! host all the time.

mod child;
mod objects;
mod process;

use std::process::ExitCode;
use std::time::Duration;

use process::Process;
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::{Orders, Share};
use vgpu_test_programs::watch::Watch;

const GRANULE: u64 = 2 << 20;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return child::run(&arguments);
    }
    if let Some(unknown) = arguments.values("without").find(|kind| !objects::KINDS.contains(kind)) {
        eprintln!("--without {unknown}: expected one of {}", objects::KINDS.join(", "));
        return ExitCode::from(2);
    }
    let seed = arguments.number("seed", u64::from(std::process::id()));
    for round in 0..arguments.number("rounds", 1) {
        match run(&arguments, seed + round) {
            Ok(said) => println!("{said}"),
            Err(error) => {
                eprintln!("churn: --seed {}: {error}", seed + round);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs one round. Returns a line of JSON.
fn run(arguments: &Arguments, seed: u64) -> Result<String, String> {
    let library = if arguments.has("native") { None } else { Some(arguments.value("library").ok_or("--library: expected a file")?) };
    let (limit, count) = (arguments.number("limit", 8 << 30), arguments.number("processes", 4));
    let share = if arguments.has("moves") { Share::evictable(limit)? } else { Share::make(limit)? };
    let watch = Watch::start(arguments.number("gpu", 0) as u32)?;
    println!("seed {seed}");
    let start = |number: u64| Process::start(arguments, &share, library, seed.wrapping_mul(1000) + number);
    let mut processes = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    processes.iter_mut().try_for_each(Process::wait)?;
    processes.iter_mut().try_for_each(|process| process.tell("go"))?;
    let orders = if arguments.has("moves") { Some(Orders::start(&share, Duration::from_millis(5), seed)?) } else { None };
    let (mut calls, mut refused) = (0, 0);
    for process in &mut processes {
        let said = process.answer("churned")?;
        calls += said.first().copied().unwrap_or(0);
        refused += said.get(1).copied().unwrap_or(0);
    }
    let moves = orders.map_or(0, |orders| orders.end().count);
    let full = compare(&mut processes, library.and(Some(&share)), &watch, "after the steps")?;
    for process in &mut processes {
        process.tell("drain")?;
        process.answer("drained")?;
    }
    let drained = compare(&mut processes, library.and(Some(&share)), &watch, "after freeing everything")?;
    processes.into_iter().try_for_each(Process::end)?;
    let mut last = vec![Process::start(arguments, &share, library, 0)?];
    last.iter_mut().try_for_each(Process::wait)?;
    last.iter_mut().try_for_each(|process| process.tell("go"))?;
    last.iter_mut().try_for_each(|process| process.answer("churned").map(|_| ()))?;
    watch.until_only(&last.iter().map(Process::id).collect::<Vec<_>>());
    compare(&mut last, library.and(Some(&share)), &watch, "in a new process")?;
    last.into_iter().try_for_each(Process::end)?;
    let (peak, samples) = watch.peak();
    if peak > limit && library.is_some() {
        return Err(format!("NVML listed {peak} bytes, with a limit of {limit}"));
    }
    Ok(format!(
        "{{\"seed\":{seed},\"processes\":{count},\"calls\":{calls},\"refused\":{refused},\"moves\":{moves},\"limit\":{limit},\"peak\":{peak},\
         \"samples\":{samples},\"full\":{full},\"drained\":{drained}}}"
    ))
}

/// Compares the accounts, if there are any, with NVML, for each process and in sum. Returns NVML's sum, in bytes.
fn compare(processes: &mut [Process], share: Option<&Share>, watch: &Watch, when: &str) -> Result<u64, String> {
    processes.iter_mut().try_for_each(|process| process.tell("reconcile"))?;
    for process in processes.iter_mut() {
        process.answer("reconciled")?;
    }
    let nvml = watch.processes();
    let real: u64 = nvml.iter().map(|&(_, bytes)| bytes).sum();
    let Some(share) = share else { return Ok(real) };
    let (ledger, mut unlisted) = (share.ledger()?, 0);
    for process in processes.iter() {
        let pid = process.id();
        let of = |list: &[(u32, u64)]| list.iter().find(|entry| entry.0 == pid).map_or(0, |entry| entry.1);
        let held = ledger.processes.iter().find(|held| held.pid == pid).cloned().unwrap_or_default();
        let real = of(&nvml);
        unlisted += held.managed + held.out;
        if (held.bytes - held.managed - held.out).abs_diff(real) > GRANULE {
            return Err(format!("{when}: a process with seed {}: {real} bytes by NVML, account {held:?}", process.seed));
        }
    }
    if (ledger.total - unlisted).abs_diff(real) > GRANULE {
        return Err(format!("{when}: {} bytes by the container's account, {real} by NVML", ledger.total - unlisted));
    }
    Ok(real)
}
