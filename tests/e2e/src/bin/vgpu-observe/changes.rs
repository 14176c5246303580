//! Measures how soon `vgpu set` takes effect, in both directions, for memory and for GPU time, in a program that keeps the GPU busy.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vgpu_e2e::{Kit, MIB, Machine, Running, Way, host, vgpu_environment};
use vgpu_region::limits::LimitsPage;
use vgpu_region::map;
use vgpu_test_harness::{Host, Runtime};

use crate::report::Report;

/// Time in which a change has to take effect, in milliseconds.
const MAX_DELAY_MS: f64 = 10.0;
/// Rounds of raising and lowering.
const ROUNDS: u32 = 10;
/// Interval of sampling a limits page.
const SAMPLE_INTERVAL: Duration = Duration::from_micros(50);
/// Length of a kernel, in nanoseconds.
const KERNEL_NS: u64 = 200_000;

/// Output of the program: a word, a time in nanoseconds, and the bytes that it held.
type Events = Arc<Mutex<Vec<(String, u64, u64)>>>;

/// Samples a limits page and records when it changes.
struct Watch {
    changed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn start(page: &'static LimitsPage) -> Self {
        let (changed, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (to, end) = (Arc::clone(&changed), Arc::clone(&stop));
        let values = || page.gpus().map(|gpu| (gpu.memory.load(Relaxed), gpu.cores.load(Relaxed))).collect::<Vec<_>>();
        let mut known = values();
        std::thread::spawn(move || {
            while !end.load(Relaxed) {
                let now = values();
                if now != known {
                    to.store(monotonic(), Release);
                    known = now;
                }
                // The thread sleeps between samples: the program may need its core.
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self { changed, stop }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A container with the program `changes`, and its output.
struct Observer<'a> {
    host: &'a Host,
    id: String,
    vgpu: PathBuf,
    environment: Vec<(String, String)>,
    watch: Watch,
    events: Events,
    reader: Option<JoinHandle<()>>,
}

impl<'a> Observer<'a> {
    /// Starts the container; `max` limits what the program allocates.
    fn start(host: &'a Host, kit: &Kit, machine: &Machine, max: &str) -> Self {
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "20");
        let mut running = Way::Wrapper.start(host, bundle.args(&["/programs/changes", "--chunk", "16M", "--max", max]));
        let id = running.id.clone();
        while !running.line().starts_with("full") {}
        let place = host.containers().into_iter().find(|place| place.ends_with(&id)).expect("the container is recorded");
        let path = CString::new(place.join("limits").as_os_str().as_bytes()).expect("a path");
        let watch = Watch::start(map::limits(&path).expect("a limits page"));
        let events = Events::default();
        let here = Arc::clone(&events);
        let reader = Some(std::thread::spawn(move || read(&mut running, &here)));
        Self { host, id, vgpu: kit.path().join("vgpu"), environment: vgpu_environment(host, machine), watch, events, reader }
    }

    /// Changes a limit. Returns when the change was requested and when it was seen in the limits page.
    fn set(&self, args: &[&str]) -> (u64, u64) {
        let asked = monotonic();
        self.watch.changed.store(0, Release);
        let mut command = Command::new(&self.vgpu);
        let output = command.envs(self.environment.clone()).args(["set", &self.id]).args(args).output().expect("vgpu starts");
        assert!(output.status.success(), "{output:?}");
        loop {
            match self.watch.changed.load(Acquire) {
                0 => std::thread::yield_now(),
                at => return (asked, at),
            }
        }
    }

    /// Returns the milliseconds from a change to the program's first such event. On a busy machine the program may see the change first.
    fn first(&self, word: &str, (asked, at): (u64, u64)) -> Option<f64> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            let events = self.events.lock().expect("the lock is not poisoned");
            if let Some((_, when, _)) = events.iter().find(|(events, when, _)| events == word && *when >= asked) {
                return Some(when.saturating_sub(at) as f64 / 1e6);
            }
            drop(events);
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Waits until the program holds `bytes` bytes.
    fn wait_for(&self, bytes: u64) {
        for _ in 0..1000 {
            let events = self.events.lock().expect("the lock is not poisoned");
            if events.iter().rev().find(|(word, ..)| word != "kernel").is_some_and(|(_, _, held)| *held >= bytes) {
                return;
            }
            drop(events);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the share of time that kernels ran, between two offsets from a moment, in milliseconds.
    fn share(&self, at: u64, from: i64, to: i64) -> f64 {
        let moment = |millis: i64| at.saturating_add_signed(millis * 1_000_000);
        let events = self.events.lock().expect("the lock is not poisoned");
        let ended = events.iter().filter(|(word, end, _)| word == "kernel" && (moment(from)..moment(to)).contains(end)).count();
        ended as f64 * KERNEL_NS as f64 / ((to - from) * 1_000_000) as f64
    }
}

impl Drop for Observer<'_> {
    fn drop(&mut self) {
        let _ = self.host.outcome(self.host.bare_command().args(["delete", "--force", &self.id]));
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// Measures and reports the delays.
pub fn measure(report: &mut Report, kit: &Kit, machine: &Machine) {
    let host = host(kit, Runtime::Runc);
    println!("\n## `vgpu set` under load\n\nMilliseconds from the change in the limits page; {ROUNDS} rounds.\n");
    println!("| change | median | longest | |\n|---|---|---|---|");
    let busy = Observer::start(&host, kit, machine, "6G");
    let (mut raised, mut lowered) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let at = busy.set(&["--gpumem", "4096"]);
        raised.push(busy.first("grew", at));
        // The program must hold more than the lower limit.
        busy.wait_for(3072 * MIB);
        let at = busy.set(&["--gpumem", "2048"]);
        lowered.push(busy.first("refused", at));
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(busy);
    delays(report, "memory 2048 to 4096 MiB: more is granted", &raised);
    delays(report, "memory 4096 to 2048 MiB, below what is held: new memory is refused", &lowered);

    println!("\nShare of GPU time around a change of the limit, mean of {ROUNDS} rounds:\n");
    println!("| change | 100 ms before | the first 10 ms | 10 to 110 ms after | |\n|---|---|---|---|---|");
    let busy = Observer::start(&host, kit, machine, "0");
    std::thread::sleep(Duration::from_secs(1));
    let mut means = [[0.0; 3]; 2];
    for _ in 0..ROUNDS {
        for (mean, cores) in means.iter_mut().zip(["80", "20"]) {
            let (_, at) = busy.set(&["--gpucores", cores]);
            std::thread::sleep(Duration::from_millis(400));
            for (sum, (from, to)) in mean.iter_mut().zip([(-100, 0), (0, 10), (10, 110)]) {
                *sum += busy.share(at, from, to) / f64::from(ROUNDS);
            }
        }
    }
    for (what, mean, expected) in [("20% to 80%", means[0], 0.8), ("80% to 20%", means[1], 0.2)] {
        report.row(what, &mean.map(|share| format!("{share:.3}")), (mean[2] - expected).abs() <= 0.05);
    }
}

fn read(running: &mut Running, events: &Events) {
    loop {
        let line = running.line();
        let mut words = line.split(' ');
        let (Some(word), Some(Ok(at))) = (words.next(), words.next().map(str::parse)) else { return };
        events.lock().expect("the lock is not poisoned").push((
            word.to_owned(),
            at,
            words.next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0),
        ));
    }
}

fn delays(report: &mut Report, what: &str, found: &[Option<f64>]) {
    let mut known: Vec<f64> = found.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    eprintln!("{what}: {known:.2?}");
    let (median, longest) = (known.get(known.len() / 2), known.last());
    let text = |value: Option<&f64>| value.map_or_else(|| "never".to_owned(), |value| format!("{value:.2}"));
    let good = known.len() == found.len() && longest.is_some_and(|longest| *longest <= MAX_DELAY_MS);
    report.row(what, &[text(median), text(longest)], good);
}
