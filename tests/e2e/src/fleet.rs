//! Many containers on one host.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use vgpu_test_harness::{Bundle, Host, Runtime};

use crate::{Kit, Machine, host, start_detached};

/// Containers that are started or deleted at the same time while the fleet grows or goes. Most of that is waiting.
const WORKERS: usize = 8;

/// Containers that run. They are deleted when dropped.
#[derive(Debug)]
pub struct Fleet {
    /// Their host.
    pub host: Host,
    /// Their GPU.
    pub machine: Machine,
    /// Bundles of each worker.
    bundles: Vec<Bundles>,
    /// Their ids.
    pub ids: Vec<String>,
    next: AtomicUsize,
}

/// Bundle of a container that uses no GPU, and of one whose process holds GPU memory.
#[derive(Debug)]
struct Bundles {
    idle: Bundle,
    busy: Bundle,
}

/// What starts took, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Starts {
    /// The shortest one.
    pub least: f64,
    /// The median.
    pub median: f64,
    /// CPU time of one, on average.
    pub cpu: f64,
}

fn limited(bundle: Bundle) -> Bundle {
    bundle.annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "10")
}

impl Fleet {
    /// Returns a fleet without containers.
    #[must_use]
    pub fn new(kit: &Kit) -> Self {
        let machine = Machine::simulated(kit, &["total=2048G", "context=64M"]);
        let bundles = || Bundles {
            idle: limited(machine.bundle()).args(&["/bin/sleep", "86400"]),
            busy: limited(machine.bundle()).args(&["/programs/fill", "--chunk", "16M", "--max", "16M", "--hold", "86400"]),
        };
        let bundles = (0..WORKERS).map(|_| bundles()).collect();
        Self { host: host(kit, Runtime::Runc), machine, bundles, ids: Vec::new(), next: AtomicUsize::new(0) }
    }

    /// Starts containers until there are `count`. Every second one has a process on the GPU.
    ///
    /// # Panics
    /// If a container does not start.
    pub fn grow(&mut self, count: usize) {
        let left = AtomicUsize::new(self.ids.len());
        let work = |bundles: &Bundles| {
            let take = || Some(left.fetch_add(1, Relaxed)).filter(|number| *number < count);
            std::iter::from_fn(take).map(|number| self.start(bundles, true, number % 2 == 1).0).collect::<Vec<_>>()
        };
        let work = &work;
        let started: Vec<String> = std::thread::scope(|scope| {
            let workers: Vec<_> = self.bundles.iter().map(|bundles| scope.spawn(move || work(bundles))).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("containers start")).collect()
        });
        self.ids.extend(started);
        eprintln!("{} containers", self.ids.len());
    }

    /// Starts one container, and returns its id and how long that took in milliseconds.
    fn start(&self, bundles: &Bundles, is_limited: bool, is_busy: bool) -> (String, f64) {
        let id = format!("vgpu-scale-{}-{}", std::process::id(), self.next.fetch_add(1, Relaxed));
        let bundle = if is_busy { &bundles.busy } else { &bundles.idle };
        let runtime = if is_limited { self.host.command() } else { self.host.bare_command() };
        let began = Instant::now();
        start_detached(runtime, bundle, &id).unwrap_or_else(|error| panic!("{id}: {error}"));
        (id, began.elapsed().as_secs_f64() * 1e3)
    }

    /// Returns what a start takes, of `rounds` containers that are deleted at once.
    ///
    /// # Panics
    /// If a container does not start.
    #[must_use]
    pub fn starts(&self, is_limited: bool, rounds: usize) -> Starts {
        let (mut times, mut cpu) = (Vec::new(), 0.0);
        for _ in 0..rounds {
            let before = cpu_of_children();
            let (id, took) = self.start(&self.bundles[0], is_limited, false);
            cpu += cpu_of_children() - before;
            times.push(took);
            self.delete(&id, is_limited);
        }
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        Starts { least, median: median(times), cpu: cpu / rounds as f64 }
    }

    fn delete(&self, id: &str, is_limited: bool) {
        let mut command = if is_limited { self.host.command() } else { self.host.bare_command() };
        let _ = command.args(["delete", "--force", id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let this = &*self;
        std::thread::scope(|scope| {
            for ids in this.ids.chunks(this.ids.len().div_ceil(WORKERS).max(1)) {
                scope.spawn(move || ids.iter().for_each(|id| this.delete(id, false)));
            }
        });
    }
}

/// Returns the CPU time in milliseconds of the programs that this one has started and waited for.
fn cpu_of_children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: f64 = fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks * 1e3 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the median of some times.
#[must_use]
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
