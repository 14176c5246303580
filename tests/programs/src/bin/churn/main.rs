//! Several processes under one share take and give back memory at random, by all sorts of calls; in the end the accounts must say what
//! NVML says.
//!
//!     churn --library libvgpu.so [--limit BYTES] [--processes N] [--threads T] [--steps K] [--seed X] [--rounds R] [--gpu ORDINAL]
//!           [--without KIND]
//!
//! Each process, or each of its T threads, does K steps that its seed determines. Then all stand still, each asks once for more than there
//! is (before it is refused, its account is compared with NVML's), and for each process and for all together the account may differ from
//! NVML, as this program reads it without the library, by one granule of 2 MiB at most. They give everything back, and it is looked at
//! again; at last they end, and a new process must find the account right. NVML is read all the time and may never show more than the
//! limit (8 GiB). A round more has the next seed. Status 1 if anything is not so, or a call gives an unexpected code. With --native there
//! is no library, and nothing is compared: whether the driver itself bears it. A process that a signal ends says before what it was at;
//! `--without`, several times if need be, leaves out kinds of things and of steps ([`things::KINDS`]), to find what it is that ends it.

mod child;
mod process;
mod things;

use std::process::ExitCode;

use process::Process;
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::share::Share;
use vgpu_test_programs::watch::Watch;

const GRANULE: u64 = 2 << 20;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if arguments.has("child") {
        return child::run(&arguments);
    }
    if let Some(unknown) = arguments.values("without").find(|kind| !things::KINDS.contains(kind)) {
        eprintln!("--without {unknown}: not one of {}", things::KINDS.join(", "));
        return ExitCode::from(2);
    }
    let seed = arguments.number("seed", u64::from(std::process::id()));
    for round in 0..arguments.number("rounds", 1) {
        match run(&arguments, seed + round) {
            Ok(said) => println!("{said}"),
            Err(why) => {
                eprintln!("churn: --seed {}: {why}", seed + round);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// One round. Gives a line of JSON.
fn run(arguments: &Arguments, seed: u64) -> Result<String, String> {
    let library = if arguments.has("native") { None } else { Some(arguments.value("library").ok_or("--library FILE is needed")?) };
    let (limit, count) = (arguments.number("limit", 8 << 30), arguments.number("processes", 4));
    let share = Share::make(limit)?;
    let watch = Watch::start(arguments.number("gpu", 0) as u32)?;
    println!("seed {seed}");
    let start = |number: u64| Process::start(arguments, &share, library, seed.wrapping_mul(1000) + number);
    let mut processes = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    processes.iter_mut().try_for_each(Process::wait)?;
    processes.iter_mut().try_for_each(|process| process.tell("go"))?;
    let (mut calls, mut refused) = (0, 0);
    for process in &mut processes {
        let said = process.answer("churned")?;
        calls += said.first().copied().unwrap_or(0);
        refused += said.get(1).copied().unwrap_or(0);
    }
    let full = compare(&mut processes, library.and(Some(&share)), &watch, "after the steps")?;
    for process in &mut processes {
        process.tell("drain")?;
        process.answer("drained")?;
    }
    let drained = compare(&mut processes, library.and(Some(&share)), &watch, "with everything given back")?;
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
        return Err(format!("NVML showed {peak} bytes, and the limit is {limit}"));
    }
    Ok(format!(
        "{{\"seed\":{seed},\"processes\":{count},\"calls\":{calls},\"refused\":{refused},\"limit\":{limit},\"peak\":{peak},\
         \"samples\":{samples},\"full\":{full},\"drained\":{drained}}}"
    ))
}

/// Compares accounts, if there are any, with NVML, process by process and in sum, and gives that by NVML.
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
        unlisted += held.managed;
        if (held.bytes - held.managed).abs_diff(real) > GRANULE {
            return Err(format!("{when}: a process whose own seed is {}: {real} bytes by NVML, and by its account {held:?}", process.seed));
        }
    }
    if (ledger.total - unlisted).abs_diff(real) > GRANULE {
        return Err(format!("{when}: {} bytes by the container's account, {real} by NVML", ledger.total - unlisted));
    }
    Ok(real)
}
