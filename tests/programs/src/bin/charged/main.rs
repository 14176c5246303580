//! Checks that every way to use GPU time is charged: each runs in a process of its own under a limit of GPU time.
//!
//!     charged --library libvgpu.so [--percent N] [--gpu ORDINAL] [--only METHOD]
//!
//! Prints a table, in milliseconds: what the kernels took by their own lengths, and what was charged. Ends with status 1 if GPU time
//! was not charged, or if far more was charged than used.

mod methods;

use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::limits::{GpuLimit, Selector};
use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::cuda::{self, sys::CUresult};
use vgpu_test_programs::share::Share;

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    if let Some(method) = arguments.value("method") {
        return child(method, &arguments);
    }
    let Some(library) = arguments.value("library") else {
        eprintln!("charged: --library: expected a file");
        return ExitCode::from(2);
    };
    let only: Vec<&str> = arguments.values("only").collect();
    let mut wrong = 0;
    println!("| method | took, ms | charged, ms | |\n|---|---|---|---|");
    for method in methods::NAMES.iter().filter(|method| only.is_empty() || only.contains(method)) {
        match run_limited(method, library, &arguments) {
            Ok(None) => println!("| {method} | | | not supported here |"),
            Ok(Some((took, charged))) => {
                // A tolerance of 0.5 ms, for pauses between launches that no other program could have used.
                // Destroying a context takes time beyond its work, which counts as used.
                let ends = if method.starts_with("context") { 500_000_000 } else { 0 };
                let good = charged + 500_000 >= took - took / 50 && charged <= took + took / 4 + 20_000_000 + ends;
                wrong += u32::from(!good);
                println!("| {method} | {:.1} | {:.1} | {} |", millis(took), millis(charged), if good { "ok" } else { "**WRONG**" });
            }
            Err(error) => {
                wrong += 1;
                println!("| {method} | | | **{error}** |");
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// Runs a method under a limit. Returns what it took and what was charged, in nanoseconds; `None` if the driver lacks something that
/// the method needs.
fn run_limited(method: &str, library: &str, arguments: &Arguments) -> Result<Option<(u64, u64)>, String> {
    let limit = GpuLimit::new(Selector::All);
    limit.cores.store(arguments.number("percent", 60) as u32, Relaxed);
    let share = Share::with([limit])?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.args(["--method", method, "--gpu", &arguments.number("gpu", 0).to_string()]);
    let output = share.limits(library, &mut command).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    match words[..] {
        ["unsupported"] => Ok(None),
        ["took", took] if output.status.success() => Ok(Some((took.parse().map_err(|_| said.to_string())?, share.gpu_time()?))),
        _ => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
    }
}

/// Runs a method and prints what it took.
fn child(method: &str, arguments: &Arguments) -> ExitCode {
    match methods::run(method, arguments.number("gpu", 0) as i32) {
        Ok(took) => println!("took {took}"),
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => println!("unsupported"),
        Err(code) => {
            println!("{method}: {}", cuda::name(code));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
