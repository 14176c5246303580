//! The accuracy of the limiter for many programs on many hosts. Prints a table; the figures of docs/limiter.md are from it.
//!
//! ```text
//! cargo test --release -p vgpu-gpu-limiter --lib sim::matrix -- --ignored --nocapture
//! ```
//!
//! `VGPU_MATRIX` selects jobs by a part of their names. Each line has the deviation of the work done from the limit in points, its mean and
//! its largest absolute value, the largest standard deviation over windows of 100 ms, and sleeps a second and driver calls a launch at 50%.

use std::cell::Cell;

use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget};
use crate::stream::Stream;
use crate::tuning::MIN_PAUSE_NS;

/// A machine.
#[derive(Clone, Copy, Debug)]
struct Platform {
    /// GPU time of an event, time by which a sleep exceeds its length, and host time of a launch, in microseconds.
    event: u64,
    wake: u64,
    launch: u64,
    /// Time that the host loses after a nap of 30 ms, in microseconds: it launches more slowly at first.
    loses: u64,
}

const fn platform(event: u64, wake: u64, launch: u64, loses: u64) -> Platform {
    Platform { event, wake, launch, loses }
}

/// Values of event, wake and launch are those of H100 and H200 hosts and beyond, each value with several others.
const PLATFORMS: [Platform; 12] = [
    platform(2, 60, 2, 300),
    platform(1, 20, 2, 0),
    platform(6, 60, 5, 600),
    platform(2, 150, 5, 600),
    platform(2, 300, 2, 600),
    platform(1, 300, 12, 1_200),
    platform(6, 300, 5, 1_200),
    platform(1, 60, 5, 300),
    platform(6, 20, 12, 0),
    platform(2, 150, 2, 1_200),
    platform(1, 150, 12, 300),
    platform(6, 150, 2, 300),
];

/// Returns the time that the host loses after a nap, in nanoseconds (hosts of H200s: .2 ms after 2 ms, .5 ms after 10 ms, 1.3 ms after 30 ms).
fn lost_ns(most_ns: u64, nap_ns: u64) -> u64 {
    let part = match nap_ns {
        0..=2_000_000 => 15,
        2_000_001..=10_000_000 => 15 + 25 * (nap_ns - 2 * MS) / (8 * MS),
        _ => 40 + 60 * (nap_ns.min(30 * MS) - 10 * MS) / (20 * MS),
    };
    most_ns * part / 100
}

/// Driver calls that a stream accepts ahead.
const MOST_AHEAD: u64 = 1_000;

/// The host's side of a program, with the limiter or without.
struct Host {
    gpu: Gpu,
    limited: Option<(Process, Vec<&'static Stream>)>,
    platform: Platform,
    lost: Cell<u64>,
    launches: Cell<u64>,
    random: Cell<u64>,
}

impl Host {
    fn new(platform: Platform, percent: Option<u32>, streams: u64) -> Self {
        let gpu = Gpu::new();
        gpu.event_ns.set(platform.event * US);
        gpu.wake_ns.set(platform.wake * US);
        gpu.launch_ns.set(platform.launch * US);
        let limited = percent.map(|percent| {
            let process = Process::new(budget(), percent, 1);
            let streams = (0..streams).map(|number| process.stream(number)).collect();
            (process, streams)
        });
        Self { gpu, limited, platform, lost: Cell::new(0), launches: Cell::new(0), random: Cell::new(1) }
    }

    fn random(&self, below: u64) -> u64 {
        self.random.set(self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (self.random.get() >> 33) % below
    }

    /// Launches a kernel, `host` nanoseconds after the last launch.
    fn launch(&self, stream: u64, kind: u64, kernel: u64, host: u64) {
        let gpu = &self.gpu;
        gpu.pass(host.saturating_sub(gpu.launch_ns.get()));
        self.launches.set(self.launches.get() + 1);
        // The driver lets the program wait if too much is in flight.
        let ahead = gpu.free_at(gpu::stream(stream as usize + 1)).saturating_sub(gpu.now());
        gpu.pass(ahead.saturating_sub(MOST_AHEAD * (kernel + gpu::BETWEEN_NS)));
        let Some((process, streams)) = &self.limited else { return gpu.launch(gpu::stream(stream as usize + 1), kernel) };
        // The library's memory stays in the caches if the program launches often.
        gpu.pass(if host < 20 * US { 230 } else { 600 });
        let (before, naps) = (gpu.now(), gpu.naps.get());
        process.launch(gpu, streams[stream as usize], kind, kernel);
        if gpu.naps.get() != naps {
            self.lost.set(lost_ns(self.platform.loses * US, gpu.now() - before));
        }
        let late = self.lost.get().min(host.max(gpu.launch_ns.get()) / 2);
        self.lost.set(self.lost.get() - late);
        gpu.pass(late);
    }

    fn wait(&self, stream: u64) {
        match &self.limited {
            None => self.gpu.synchronize(gpu::stream(stream as usize + 1)),
            Some((process, streams)) => {
                process.wait(&self.gpu, streams[stream as usize], true);
                self.gpu.pass(4 * US);
            }
        }
    }
}

/// A program: one step of its loop.
type Step = fn(&Host);

struct Job {
    name: &'static str,
    streams: u64,
    /// Each kernel fills the GPU.
    exclusive: bool,
    /// Seconds after the first one.
    seconds: u64,
    step: Step,
}

const fn job(name: &'static str, streams: u64, step: Step) -> Job {
    Job { name, streams, exclusive: false, seconds: 3, step }
}

/// Launches of a training step and a wait for all.
fn training_step(host: &Host, launches: u64, kernel: u64, each: u64) {
    (0..launches).for_each(|n| host.launch(0, 1 + n % 20, kernel + n % 20 * US / 4, each));
    host.wait(0);
}

fn to_all(host: &Host, streams: u64, kernel: u64) {
    (0..streams).for_each(|stream| host.launch(stream, 1, kernel, 0));
}

const JOBS: &[Job] = &[
    job("kernels of 5 us", 1, |host| host.launch(0, 1, 5 * US, 0)),
    job("kernels of 20 us", 1, |host| host.launch(0, 1, 20 * US, 0)),
    job("kernels of 200 us", 1, |host| host.launch(0, 1, 200 * US, 0)),
    job("kernels of 2 ms", 1, |host| host.launch(0, 1, 2 * MS, 0)),
    Job { seconds: 20, ..job("kernels of 20 ms", 1, |host| host.launch(0, 1, 20 * MS, 0)) },
    Job { seconds: 60, ..job("kernels of 100 ms", 1, |host| host.launch(0, 1, 100 * MS, 0)) },
    job("graphs of 500 us", 1, |host| host.launch(0, 1, 500 * US, 20 * US)),
    job("three kinds, 7 to 50 us", 1, |host| {
        let kind = host.random(3);
        host.launch(0, 1 + kind, [7, 16, 50][kind as usize] * US, 0);
    }),
    job("one kind, 2 us to 2 ms", 1, |host| {
        let length = (2 * US) << host.random(16).min(10);
        host.launch(0, 1, length, 0);
    }),
    job("two streams of 200 us", 2, |host| to_all(host, 2, 200 * US)),
    job("four streams of 20 us", 4, |host| to_all(host, 4, 20 * US)),
    job("four streams of 200 us", 4, |host| to_all(host, 4, 200 * US)),
    job("four streams of 2 ms", 4, |host| to_all(host, 4, 2 * MS)),
    Job { exclusive: true, ..job("four exclusive streams of 200 us", 4, |host| to_all(host, 4, 200 * US)) },
    job("two streams, 200 us and 1 ms", 2, |host| {
        (0..5).for_each(|_| host.launch(0, 1, 200 * US, 0));
        host.launch(1, 2, MS, 0);
    }),
    job("4 of 200 us and a wait", 1, |host| {
        (0..4).for_each(|_| host.launch(0, 1, 200 * US, 0));
        host.wait(0);
    }),
    job("96 of 13 us and a wait", 1, |host| {
        (0..96).for_each(|_| host.launch(0, 1, 13 * US, 0));
        host.wait(0);
    }),
    job("1 of 50 us and a wait", 1, |host| {
        host.launch(0, 1, 50 * US, 0);
        host.wait(0);
    }),
    job("host: 30 in 14 us each", 1, |host| training_step(host, 30, 5 * US, 14 * US)),
    job("host: 100 in 14 us each", 1, |host| training_step(host, 100, 5 * US, 14 * US)),
    job("host: 120 in 28 us each", 1, |host| training_step(host, 120, 6 * US, 28 * US)),
    job("host: 400 in 28 us each", 1, |host| training_step(host, 400, 10 * US, 28 * US)),
    job("host: 14 us each, no wait", 1, |host| host.launch(0, 1 + host.random(9), 7 * US, 14 * US)),
    job("20 of 100 us, then 3 ms pause", 1, |host| {
        (0..20).for_each(|_| host.launch(0, 1, 100 * US, 0));
        host.wait(0);
        host.gpu.pass(3 * MS);
    }),
    job("100 of 18 us, then 5 ms pause", 1, |host| {
        (0..100).for_each(|_| host.launch(0, 1, 18 * US, 0));
        host.gpu.pass(5 * MS);
    }),
];

/// What a program got.
struct Got {
    /// Work of each window of 100 ms, in nanoseconds of kernels.
    windows: Vec<f64>,
    /// Part of the GPU's time, short pauses included.
    busy: f64,
    sleeps: f64,
    calls: f64,
}

fn run(job: &Job, platform: Platform, percent: Option<u32>) -> Got {
    let host = Host::new(platform, percent, job.streams);
    host.gpu.is_exclusive.set(job.exclusive);
    let start = host.gpu.now();
    let seconds = if percent.is_some() { job.seconds } else { job.seconds.min(3) };
    let (from, to) = (start + S, start + (1 + seconds) * S);
    while host.gpu.now() < to {
        (job.step)(&host);
    }
    let busy = host.gpu.used_with_pauses(from, to, MIN_PAUSE_NS) as f64 / (to - from) as f64;
    Got {
        windows: host.gpu.work(from, to, 100 * MS),
        busy,
        sleeps: host.gpu.naps.get() as f64 / (1 + seconds) as f64,
        calls: host.gpu.calls.get() as f64 / host.launches.get() as f64,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
#[ignore = "prints a table, for people"]
fn prints_the_accuracy_of_the_limit() {
    let selected = std::env::var("VGPU_MATRIX").unwrap_or_default();
    println!("{:34} {:>6} {:>6}  {:<28} {:>6} {:>8} {:>6}", "job", "mean", "worst", "  where", "sd", "sleeps/s", "calls");
    let (mut all, mut worst_all, mut worst_sd) = (Vec::new(), 0.0_f64, 0.0_f64);
    for job in JOBS.iter().filter(|job| job.name.contains(&selected)) {
        let (mut errors, mut worst, mut place, mut sd, mut sleeps, mut calls) = (Vec::new(), 0.0_f64, String::new(), 0.0_f64, 0.0, 0.0);
        for platform in PLATFORMS {
            let alone = run(job, platform, None);
            for percent in [10, 25, 50, 75, 90] {
                let got = run(job, platform, Some(percent));
                let limit = f64::from(percent);
                let shares: Vec<f64> = got.windows.iter().map(|work| work / mean(&alone.windows) * alone.busy * 100.0).collect();
                let error = mean(&shares) - limit.min(alone.busy * 100.0);
                errors.push(error);
                if error.abs() > worst {
                    let Platform { event, wake, launch, loses } = platform;
                    (worst, place) = (error.abs(), format!("{error:+.1} {percent}% {event} {wake} {launch} {loses}"));
                }
                // A program that rests of itself has an uneven use, too; and a long kernel is not divided.
                if alone.busy > 0.95 && !job.name.contains("0 ms") {
                    sd = sd.max(shares.iter().map(|share| (share - mean(&shares)).powi(2) / shares.len() as f64).sum::<f64>().sqrt());
                }
                if percent == 50 {
                    (sleeps, calls) = (sleeps + got.sleeps / PLATFORMS.len() as f64, calls + got.calls / PLATFORMS.len() as f64);
                }
            }
        }
        println!("{:34} {:>6.2} {worst:>6.2}  {place:<28} {sd:>6.2} {sleeps:>8.0} {calls:>6.3}", job.name, mean(&errors));
        all.extend(errors.iter().map(|error| error.abs()));
        (worst_all, worst_sd) = (worst_all.max(worst), worst_sd.max(sd));
    }
    println!("{:34} {:>6.2} {worst_all:>6.2}  {:<28} {worst_sd:>6.2}", "all: mean of absolute values", mean(&all), "");
}
