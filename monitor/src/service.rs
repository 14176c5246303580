//! `vgpu monitor`: samples several times a second, responds to violations, serves metrics, keeps HAMi's regions and the trace logs up to
//! date, and runs the arbiter.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use vgpu_config::Inventory;
use vgpu_config::policy::OnViolation;
use vgpu_oci_hook::state::CONTAINERS;

use crate::damage::DamageLog;
use crate::enforcement;
use crate::hami_region::RegionFiles;
use crate::http;
use crate::inventory;
use crate::latest::{Exposition, Latest};
use crate::metrics::{self, Dialect};
use crate::observer::Observer;
use crate::snapshot::Snapshot;
use crate::trace::log_dir::LogWriters;
use crate::violations::ViolationDetector;

/// Time between two samples. A violation counts from the third on, so it is reported within two seconds.
const INTERVAL: Duration = Duration::from_millis(400);

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct Settings {
    /// State directory of the host.
    pub state_dir: PathBuf,
    /// Node name in HAMi's metrics.
    pub node: String,
    /// HAMi's metric names to expose.
    pub dialect: Dialect,
    /// Response to violations.
    pub on_violation: OnViolation,
    /// Time for which a violation must last before its processes are ended.
    pub grace: Duration,
    /// Whether the arbiter gives turns to containers that share a GPU.
    pub turns: bool,
}

/// Runs until `stop` is set. Answers HTTP on `listener`.
///
/// # Errors
/// The listener cannot be used.
pub fn run(settings: &Settings, listener: TcpListener, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let latest = Arc::new(Latest::default());
    let exposition = Arc::new(Exposition { node: settings.node.clone(), dialect: settings.dialect, latest: Arc::clone(&latest) });
    info!(url = %format_args!("http://{}/metrics", listener.local_addr()?), "serving metrics");
    thread::spawn(move || {
        let Err(error) = http::run(listener, exposition);
        error!(%error, "cannot serve metrics");
    });
    let mut observer = Observer::new(&settings.state_dir);
    let mut nvml_error = None;
    log_nvml(&observer, &mut nvml_error);
    let workers = Workers::start(settings, stop);
    let (mut detector, mut damage) = (ViolationDetector::new(settings.grace), DamageLog::default());
    let (start, mut written) = (Instant::now(), None);
    while !stop.load(Relaxed) {
        write_inventory(settings, &observer, &mut written);
        let sampled = Instant::now();
        let snapshot = Arc::new(observer.sample());
        log_nvml(&observer, &mut nvml_error);
        damage.update(&snapshot);
        let violations = detector.detect(&snapshot, start.elapsed());
        let ended =
            enforcement::respond(&violations, settings.on_violation, |process, dir_name| observer.is_in_container(process, dir_name));
        latest.publish(Arc::clone(&snapshot), sampled, |tallies| metrics::count_violations(tallies, &violations, &ended));
        workers.send(&snapshot);
        thread::sleep(INTERVAL.saturating_sub(sampled.elapsed()));
    }
    workers.finish();
    Ok(())
}

/// Logs a change of NVML's availability. `last` is the error logged last.
fn log_nvml(observer: &Observer, last: &mut Option<String>) {
    match (observer.nvml_error(), &last) {
        (Some(error), last) if last.as_deref() != Some(error) => {
            warn!(error, "NVML is unavailable: memory held by containers cannot be checked from outside");
        }
        (None, Some(_)) => info!("NVML is available"),
        _ => return,
    }
    *last = observer.nvml_error().map(str::to_owned);
}

/// Writes the inventory if NVML's differs from the one written last.
fn write_inventory(settings: &Settings, observer: &Observer, written: &mut Option<Inventory>) {
    if written.as_ref() == Some(observer.inventory()) || observer.nvml_error().is_some() {
        return;
    }
    match inventory::write(&settings.state_dir, observer.inventory()) {
        Ok(_) => *written = Some(observer.inventory().clone()),
        Err(error) => error!(%error, "cannot write the inventory of GPUs"),
    }
}

/// Threads that work on each snapshot, and the arbiter.
struct Workers {
    to_regions: SyncSender<Arc<Snapshot>>,
    to_traces: SyncSender<Arc<Snapshot>>,
    traces: JoinHandle<()>,
    arbiter: Option<JoinHandle<()>>,
}

impl Workers {
    fn start(settings: &Settings, stop: &Arc<AtomicBool>) -> Self {
        let arbiter = settings.turns.then(|| {
            let (dir, stop) = (settings.state_dir.join(CONTAINERS), Arc::clone(stop));
            thread::spawn(move || vgpu_arbiter::service::run(&dir, &stop))
        });
        // Files in containers may be on file systems that never answer, so they get a thread of their own, which is never joined.
        let (to_regions, snapshots) = mpsc::sync_channel::<Arc<Snapshot>>(1);
        thread::spawn(move || {
            let mut files = RegionFiles::default();
            for snapshot in snapshots {
                for problem in files.update(&snapshot) {
                    let (container, path) = (problem.container, problem.path);
                    warn!(container, path, error = problem.error, "cannot keep HAMi's shared region");
                }
            }
        });
        let (to_traces, snapshots) = mpsc::sync_channel::<Arc<Snapshot>>(1);
        let mut writers = LogWriters::new(&settings.state_dir);
        let traces = thread::spawn(move || {
            snapshots.iter().for_each(|snapshot| writers.update(&snapshot));
            writers.finish();
        });
        Self { to_regions, to_traces, traces, arbiter }
    }

    /// Hands a snapshot to the threads. One that is still busy with the last snapshot skips this one.
    fn send(&self, snapshot: &Arc<Snapshot>) {
        let _ = self.to_regions.try_send(Arc::clone(snapshot));
        let _ = self.to_traces.try_send(Arc::clone(snapshot));
    }

    /// Waits until the traces are written and the arbiter has opened all turns.
    fn finish(self) {
        drop(self.to_traces);
        let _ = self.traces.join();
        if let Some(arbiter) = self.arbiter {
            let _ = arbiter.join();
        }
    }
}
