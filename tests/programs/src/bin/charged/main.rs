//! Every way of having GPU time, and whether all of it is charged: each in a process of its own under a limit of the GPU's time.
//!
//!     charged --library libvgpu.so [--percent N] [--gpu ORDINAL] [--only WAY]
//!
//! Prints a table, in milliseconds: what the kernels took by their own lengths, what was charged. Ends with status 1 if one had time
//! that nobody paid for, or paid for much that it did not have.

mod ways;

use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, sys::CUresult};
use vgpu_test_programs::share::Share;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if let Some(way) = arguments.value("way") {
        return child(way, &arguments);
    }
    let Some(library) = arguments.value("library") else {
        eprintln!("charged: --library is missing");
        return ExitCode::from(2);
    };
    let only: Vec<&str> = arguments.values("only").collect();
    let mut wrong = 0;
    println!("| way | took, ms | charged, ms | |\n|---|---|---|---|");
    for way in ways::NAMES.iter().filter(|way| only.is_empty() || only.contains(way)) {
        match tried(way, library, &arguments) {
            Ok(None) => println!("| {way} | | | not supported here |"),
            Ok(Some((took, charged))) => {
                // Half a millisecond: pauses between launches that nobody else could have used.
                // What the end of a context takes beyond the work in it counts as used, too.
                let ends = if way.starts_with("context") { 500_000_000 } else { 0 };
                let good = charged + 500_000 >= took - took / 50 && charged <= took + took / 4 + 20_000_000 + ends;
                wrong += u32::from(!good);
                println!("| {way} | {:.1} | {:.1} | {} |", millis(took), millis(charged), if good { "ok" } else { "**WRONG**" });
            }
            Err(why) => {
                wrong += 1;
                println!("| {way} | | | **{why}** |");
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// What a way took and what was charged for it, in nanoseconds; `None` where the driver lacks something that it needs.
fn tried(way: &str, library: &str, arguments: &Arguments) -> Result<Option<(u64, u64)>, String> {
    let limit = GpuLimit::new(Selector::All);
    limit.cores.store(arguments.number("percent", 60) as u32, Relaxed);
    let share = Share::with([limit])?;
    let this = std::env::current_exe().map_err(|why| why.to_string())?;
    let mut command = Command::new(this);
    command.args(["--way", way, "--gpu", &arguments.number("gpu", 0).to_string()]);
    let output = share.limits(library, &mut command).output().map_err(|why| why.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    match words[..] {
        ["unsupported"] => Ok(None),
        ["took", took] if output.status.success() => Ok(Some((took.parse().map_err(|_| said.to_string())?, share.gpu_time()?))),
        _ => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
    }
}

/// Goes a way, and says what it took.
fn child(way: &str, arguments: &Arguments) -> ExitCode {
    match ways::go(way, arguments.number("gpu", 0) as i32) {
        Ok(took) => println!("took {took}"),
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => println!("unsupported"),
        Err(code) => {
            println!("{way}: {}", cuda::name(code));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
