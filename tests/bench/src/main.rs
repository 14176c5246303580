//! Measures the compute limit: natively, with the library, and with other libraries.
//!
//!     vgpu-bench --library PATH [--peer PATH]... [--limits 25,50,75] [--seconds 5] [--rounds 1] [--jobs 0,1] [--mps FOLDER]
//!                [--kernels 200,2000,endless] [--kinds 0,1] [--tenants 16] [--rest 3] [--build PATH]... [--only-ours] [PART]...
//!     vgpu-bench container FOLDER PERCENT
//!     vgpu-bench arbiter FOLDER
//!
//! The first form prints the share of its own solo throughput that a tenant gets, natively, with the library and with each peer.
//! Everything is measured in one run on one machine, native first. Parts: `shares`, `pair`, `mixed`, `tenants`, `soft`, `launch`,
//! `latency`, `four`, `neighbour`, `hostile`, `beside` (the cost of a launch), `eight`, and those below; default: all. `mps` measures
//! containers that are clients of a running MPS daemon, whose pipes are in the folder of `--mps`.
//!
//! * `alone`: as `shares`, at 10, 25, 50, 75 and 90% unless `--limits` names others, beside a running arbiter; each `--build`, another build of
//!   the library, in turn with the library.
//! * `busy-pairs`: two busy tenants at 30/70 and 50/50 with kernels of 20 us to 100 ms; shares and their sum, over whole seconds. A kernel
//!   that is partly inside the measured time counts partly.
//! * `interactive`: a tenant at 30% that answers requests, which arrive at random times, the same in all runs; `--kinds`: 0 is 20 kernels of
//!   50 us, 50 times a second, 1 is 10 kernels, 200 times a second. Alone, beside a busy tenant at 70%, two at 30 and 70%, and three at 25, 25 and 20%.
//!   Prints the latency from the arrival, which includes the wait for requests before, and its ratio to the latency alone. Busy tenants run
//!   for 1.5 s before the requests start, and for 1 s after they end. The requests' own share is their number x their nominal time. A 99th
//!   percentile of few requests says little: 50 a second need `--seconds 20` for a thousand.
//! * `many`: 16 equal tenants, or each number of `--tenants` (at most 100); shares, Jain's index, and what the tenants got of their share
//!   (natively: of an equal part). With `--rest`, each tenant runs 20 kernels that many seconds before all begin, as a program does that
//!   warms up and waits for others.
//!
//! `--only-ours` leaves out, in `interactive`, `busy-pairs` and `many`, the same tenants beside each other natively.
//!
//! `--kernels` restricts the busy tenants' kernels in `interactive` and `busy-pairs` to these lengths in us. A row with several lengths is
//! measured if all of them are named.
//!
//! The second form creates the files for `VGPU_DIR=FOLDER LD_PRELOAD=libvgpu.so PROGRAM`. The third runs an arbiter for the containers whose
//! files are in folders below FOLDER, until its standard input is closed.
//!
//! A share is launches finished ÷ wall time × the time of one launch alone, which is native's wall time divided by its launches in the
//! same job. With `--rounds` the sides of `shares` and `launch` run in turn that many times: very short kernels take 3% longer in some
//! starts of a program than in others, with or without a library.

mod bench;
mod busy_pairs;
mod contention;
mod equal;
mod hostile;
mod interactive;
mod kernel;
mod launch_cost;
mod options;
mod requests;
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
        ["arbiter", folder] => {
            let arbiter = run::Arbiter::start(Path::new(folder));
            // Until the caller closes the pipe, or ends.
            _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            arbiter.stop();
            Ok(())
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
        launches: number(8) as u32,
        per_second: number(9),
        rest_ms: number(10) as u64,
        delay_ms: 0,
    };
    match words.first().map(String::as_str) {
        Some("busy") => tenant::busy(&job),
        Some("threads") => tenant::threads(&job),
        Some("periodic") => tenant::periodic(&job),
        Some("requests") => requests::requests(&job),
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
    if wanted("alone") {
        shares::alone(&bench)?;
    }
    if wanted("pair") {
        shares::pair(&bench)?;
    }
    if wanted("mixed") {
        shares::mixed(&bench)?;
    }
    contention::run(&bench, wanted)
}
