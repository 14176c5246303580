//! `vgpu trace`: records what a running container's processes do on the GPU.

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
use vgpu_monitor::trace::rings::Rings;
use vgpu_monitor::trace::{Event, TraceSession, chrome};
use vgpu_oci_hook::state::REGION;
use vgpu_region::trace::{CAPTURED, FAILED, Kind};

/// How often the rings are copied: they hold the last 32768 records of each process.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait in the end for work that has not finished.
const PATIENCE: Duration = Duration::from_secs(2);

/// Record what a running container does on the GPU, for Perfetto
///
/// Launches, copies, allocations, waits for the GPU, for budget and for turns, with the time that they took on the host and, by events
/// around them, on the GPU. Open the file at ui.perfetto.dev or in chrome://tracing. It costs a few microseconds for each launch
/// while it lasts, and nothing before and after. A container in whose environment PFLOG names a folder is traced all the time.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which container: its id or the beginning of it, or its name, its pod's, pod/container or namespace/pod/container
    #[arg(required_unless_present = "from", default_value = "", hide_default_value = true)]
    container: String,
    /// Where to write the trace
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// For how long; without it until Ctrl-C, or until the container is gone
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Instead of a container: what is recorded in a region's file, of a program without a container
    #[arg(long, value_name = "REGION", hide = true, conflicts_with_all = ["container", "seconds"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What there was.
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
            Kind::Kernel => (self.launches, self.kernels) = (self.launches + 1, self.kernels.saturating_add(event.amount)),
            Kind::Graph if event.amount == 0 => self.graphs_unknown += 1,
            Kind::Graph => (self.launches, self.in_graphs) = (self.launches + 1, self.in_graphs.saturating_add(event.amount)),
            Kind::Copy => self.copies += 1,
            Kind::Fill => self.fills += 1,
            Kind::Allocate => self.allocations += 1,
            Kind::Free => self.frees += 1,
            Kind::Budget | Kind::Turn => self.waits += 1,
            Kind::Start | Kind::Synchronize | Kind::Refused | Kind::Init | Kind::Other => {}
        }
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        if let Some(region) = &self.from {
            return self.convert(region);
        }
        let state_dir = self.config.state_dir()?;
        let containers = container::list(&state_dir, &mut Reader::default());
        let container = container::find(&containers, &self.container)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let file = File::create(&self.output).map_err(|why| format!("{}: {why}", self.output.display()))?;
        let mut out = chrome::Writer::new(BufWriter::new(file))?;
        let mut counts = Counts::default();
        let region = container.place.join(REGION);
        let mut rings = Rings::open(&region, false)?;
        let traced = TraceSession::start(container)?;
        eprintln!("vgpu trace: {} until {}", container.record.id, self.until());
        let (begun, long) = (Instant::now(), self.seconds.map(Duration::from_secs));
        let mut take = |rings: &mut Rings, last| {
            let mut done = Ok(());
            rings.drain(last, |event| {
                counts.add(&event);
                if done.is_ok() {
                    done = out.event(&event);
                }
            });
            done
        };
        while !stop.load(Relaxed) && long.is_none_or(|long| begun.elapsed() < long) && region.exists() {
            take(&mut rings, false)?;
            std::thread::sleep(INTERVAL.min(long.map_or(INTERVAL, |long| long.saturating_sub(begun.elapsed()))));
        }
        // What was launched last may still be running; how long it took is written down at a later call.
        let ended = Instant::now();
        rings.stop();
        while rings.has_pending() && ended.elapsed() < PATIENCE && !stop.load(Relaxed) && region.exists() {
            take(&mut rings, false)?;
            std::thread::sleep(INTERVAL);
        }
        take(&mut rings, true)?;
        drop(traced);
        let lost = rings.lost;
        out.finish()?;
        report(&counts, lost, &self.output);
        Ok(ExitCode::SUCCESS)
    }

    fn convert(&self, region: &Path) -> Outcome {
        let mut rings = Rings::open(region, true)?;
        let mut out = chrome::Writer::new(BufWriter::new(File::create(&self.output)?))?;
        let (mut counts, mut done) = (Counts::default(), Ok(()));
        rings.drain(true, |event| {
            counts.add(&event);
            if done.is_ok() {
                done = out.event(&event);
            }
        });
        done?;
        out.finish()?;
        report(&counts, rings.lost, &self.output);
        Ok(ExitCode::SUCCESS)
    }

    fn until(&self) -> String {
        self.seconds.map_or_else(|| "Ctrl-C, or until it is gone".to_owned(), |seconds| format!("{seconds} s have passed"))
    }
}

fn report(counts: &Counts, lost: u64, output: &Path) {
    println!(
        "{}: {} kernels by {} launches and {} in graphs, {} copies, {} fills, {} allocations, {} frees, {} waits for budget or turns; \
         {} with the GPU's own time",
        output.display(),
        counts.kernels,
        counts.launches,
        counts.in_graphs,
        counts.copies,
        counts.fills,
        counts.allocations,
        counts.frees,
        counts.waits,
        counts.timed
    );
    if counts.graphs_unknown != 0 {
        println!("{} graphs were launched whose kernels were not counted when they were instantiated", counts.graphs_unknown);
    }
    if lost != 0 {
        println!("{lost} records were overwritten before they could be copied, or cut short by the end of their process");
    }
}
