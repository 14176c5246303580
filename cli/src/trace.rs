//! `vgpu trace`: records the GPU activity of a running container.

use crate::config_args::ConfigArgs;
use crate::outcome::Outcome;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vgpu_monitor::account::Reader;
use vgpu_monitor::container;
use vgpu_monitor::selection;
use vgpu_monitor::trace::rings::Rings;
use vgpu_monitor::trace::{Event, TraceSession, chrome};
use vgpu_oci_hook::state::REGION;
use vgpu_region::trace::{CAPTURED, FAILED, Kind};

/// Interval at which the rings are copied. A ring holds the last 32768 records of a process.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait at the end for unfinished work.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Record the GPU activity of a running container, for Perfetto
///
/// Records launches, copies, allocations, and waits for the GPU, for budget and for turns, with their time on the host and,
/// measured by events, on the GPU. Open the file at ui.perfetto.dev or in chrome://tracing. Tracing costs a few
/// microseconds per launch while it is on, and nothing otherwise. A container whose environment variable PFLOG names a
/// folder is traced from its start.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Container: its id or a prefix of it, its name, its pod's name, pod/container or namespace/pod/container
    #[arg(required_unless_present = "from", default_value = "", hide_default_value = true)]
    container: String,
    /// File to write the trace to
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Duration in seconds (default: until Ctrl-C, or until the container exits)
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Convert the records in the region file of a program without a container
    #[arg(long, value_name = "REGION", hide = true, conflicts_with_all = ["container", "seconds"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Numbers of recorded events. Failed and captured calls are not counted.
#[derive(Debug, Default)]
struct Counts {
    launches: u64,
    kernels: u64,
    in_graphs: u64,
    graphs_unknown: u64,
    copies: u64,
    fills: u64,
    allocations: u64,
    frees: u64,
    waits: u64,
    timed: u64,
}

impl Counts {
    fn add(&mut self, event: &Event) {
        if event.has(FAILED) || event.has(CAPTURED) {
            return;
        }
        self.timed += u64::from(event.gpu.is_some());
        match event.kind {
            Kind::Kernel => (self.launches, self.kernels) = (self.launches + 1, self.kernels.saturating_add(event.size)),
            Kind::Graph if event.size == 0 => self.graphs_unknown += 1,
            Kind::Graph => (self.launches, self.in_graphs) = (self.launches + 1, self.in_graphs.saturating_add(event.size)),
            Kind::Copy => self.copies += 1,
            Kind::Fill => self.fills += 1,
            Kind::Allocate => self.allocations += 1,
            Kind::Free => self.frees += 1,
            Kind::Budget | Kind::Turn => self.waits += 1,
            Kind::Start | Kind::Synchronize | Kind::Refused | Kind::Init | Kind::Other | Kind::MoveOut | Kind::MoveIn => {}
        }
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        if let Some(region) = &self.from {
            return self.convert(region);
        }
        let state_dir = self.config.listed_state_dir()?;
        let containers = container::list(&state_dir, &mut Reader::default());
        let container = selection::find(&containers, &self.container)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let file = File::create(&self.output).map_err(|error| format!("{}: {error}", self.output.display()))?;
        let mut out = chrome::Writer::new(BufWriter::new(file))?;
        let mut counts = Counts::default();
        let region = container.dir.join(REGION);
        let mut rings = Rings::open(&region, false)?.in_full();
        let traced = TraceSession::start(container)?;
        eprintln!("vgpu trace: recording {} {}", container.name(), self.span());
        let (started, limit) = (Instant::now(), self.seconds.map(Duration::from_secs));
        let mut drain = |rings: &mut Rings, last| {
            let mut result = Ok(());
            rings.drain(last, |event| {
                counts.add(&event);
                if result.is_ok() {
                    result = out.event(&event);
                }
            });
            result
        };
        while !stop.load(Relaxed) && limit.is_none_or(|limit| started.elapsed() < limit) && region.exists() {
            drain(&mut rings, false)?;
            std::thread::sleep(INTERVAL.min(limit.map_or(INTERVAL, |limit| limit.saturating_sub(started.elapsed()))));
        }
        // The last launches may still be running; a later call records their time.
        let ended = Instant::now();
        rings.stop();
        while rings.has_pending() && ended.elapsed() < DRAIN_TIMEOUT && !stop.load(Relaxed) && region.exists() {
            drain(&mut rings, false)?;
            std::thread::sleep(INTERVAL);
        }
        drain(&mut rings, true)?;
        drop(traced);
        let lost = rings.lost;
        out.finish()?;
        report(&counts, lost, &self.output);
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the trace of a region file.
    fn convert(&self, region: &Path) -> Outcome {
        let mut rings = Rings::open(region, true)?;
        let mut out = chrome::Writer::new(BufWriter::new(File::create(&self.output)?))?;
        let (mut counts, mut result) = (Counts::default(), Ok(()));
        rings.drain(true, |event| {
            counts.add(&event);
            if result.is_ok() {
                result = out.event(&event);
            }
        });
        result?;
        out.finish()?;
        report(&counts, rings.lost, &self.output);
        Ok(ExitCode::SUCCESS)
    }

    /// Describes how long the trace lasts.
    fn span(&self) -> String {
        self.seconds.map_or_else(|| "until Ctrl-C or its exit".to_owned(), |seconds| format!("for {seconds} s"))
    }
}

/// Prints a summary of the trace.
fn report(counts: &Counts, lost: u64, output: &Path) {
    println!(
        "{}: {} kernels and {} kernels of graphs in {} launches, {} copies, {} fills, {} allocations, {} frees, \
         {} waits for budget or turns; {} events have GPU time",
        output.display(),
        counts.kernels,
        counts.in_graphs,
        counts.launches,
        counts.copies,
        counts.fills,
        counts.allocations,
        counts.frees,
        counts.waits,
        counts.timed
    );
    if counts.graphs_unknown != 0 {
        println!("{} launches of graphs whose kernels were not counted at their instantiation", counts.graphs_unknown);
    }
    if lost != 0 {
        println!("{lost} records lost: overwritten before they were copied, or incomplete when their process ended");
    }
}
