//! Measures the compute limit: natively, with the library, and with other libraries.
//!
//!     vgpu-bench --library PATH [--peer PATH]... [--limits 25,50,75] [--seconds 5] [--rounds 1] [--jobs 0,1] [--mps FOLDER] [PART]...
//!     vgpu-bench container FOLDER PERCENT
//!
//! The first form prints the share of its own solo throughput that a tenant gets, natively, with the library and with each peer.
//! Everything is measured in one run on one machine, native first. Parts: `shares`, `pair`, `mixed`, `tenants`, `soft`, `launch`,
//! `latency`, `four`, `neighbour`, `hostile`, `beside` (the cost of a launch), `eight`; default: all. `mps` measures containers that are
//! clients of a running MPS daemon, whose pipes are in the folder of `--mps`.
//!
//! The second form creates the files for `VGPU_DIR=FOLDER LD_PRELOAD=libvgpu.so PROGRAM`.
//!
//! A share is launches finished ÷ wall time × the time of one launch alone, which is native's wall time divided by its launches in the
//! same job. With `--rounds` the sides of `shares` and `launch` run in turn that many times: very short kernels take 3% longer in some
//! starts of a program than in others, with or without a library.

mod bench;
mod contention;
mod hostile;
mod kernel;
mod launch_cost;
mod options;
mod run;
mod shares;
mod tenant;

use std::path::Path;
use std::process::ExitCode;

use vgpu_test_programs::cuda;

use bench::Bench;
use options::Options;
use run::{Side, Tenant};
use tenant::Job;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["container", folder, percent] => {
            run::container(Path::new(folder), percent.parse().unwrap_or(0), 0).map_err(|error| format!("{folder}: {error}"))
        }
        ["beside", library, folder, stream] => launch_cost::measure(Path::new(library), Path::new(folder), *stream == launch_cost::DEFAULT)
            .map_err(|code| format!("beside: {}", cuda::name(code))),
        ["tenant", ..] => run_tenant(&arguments[1..]).map_err(|code| format!("tenant: {}", cuda::name(code))),
        _ => Options::parse(&arguments).and_then(|options| measure(&options).map_err(|error| error.to_string())),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one tenant; `words` are its kind and its job, as [`Tenant::start`] passes them.
fn run_tenant(words: &[String]) -> kernel::Result<()> {
    let number = |place: usize| words.get(place).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    let job = Job {
        rounds: number(1) as u32,
        length_us: number(2),
        seconds: number(3),
        streams: number(4) as usize,
        graph: number(5) as u32,
        every_ms: number(6) as u64,
        start_ms: number(7) as u128,
        delay_ms: 0,
    };
    match words.first().map(String::as_str) {
        Some("busy") => tenant::busy(&job),
        Some("threads") => tenant::threads(&job),
        Some("periodic") => tenant::periodic(&job),
        Some("launches") => tenant::launches(job.streams),
        Some("garbage") => hostile::garbage(&job),
        Some("forks") => hostile::forks(&job),
        _ => tenant::calibrate(),
    }
}

/// Runs the requested parts.
fn measure(options: &Options) -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let calibrated = Tenant::start(&Side::Native, "calibrate", &Job::default())?.finish()?;
    let rounds_per_us = calibrated.figures.first().copied().unwrap_or(1.0);
    let bench = Bench { options, folder: folder.path().to_owned(), rounds_per_us };
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|wanted| wanted == part);
    println!("rounds per us {rounds_per_us:.1}; {} s after the first; share (sd over 100 ms; first second) cpu of a core", options.seconds);
    if wanted("launch") {
        shares::launch(&bench)?;
    }
    if wanted("beside") {
        for stream in ["own", launch_cost::DEFAULT] {
            run::launch_cost(&options.library, &bench.folder.join("beside"), stream)?;
        }
    }
    if wanted("shares") {
        shares::shares(&bench)?;
    }
    if wanted("pair") {
        shares::pair(&bench)?;
    }
    if wanted("mixed") {
        shares::mixed(&bench)?;
    }
    contention::run(&bench, wanted)
}
