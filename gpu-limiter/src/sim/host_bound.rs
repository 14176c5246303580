//! Programs whose host does not keep up with the GPU, and is slower for a while after it was held back.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Rate;

use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget};
use crate::tuning::MAX_SAVED_NS;

/// Host time that the simulated library takes after a wait, in addition to the simulated driver's, in nanoseconds (host of an H200).
const LIBRARY_WAIT_NS: u64 = 4_000;
/// Host time that it takes for a launch into the open batch, in nanoseconds: if the program launches often, its memory stays in the caches.
const LIBRARY_WARM_LAUNCH_NS: u64 = 230;
const LIBRARY_COLD_LAUNCH_NS: u64 = 600;

/// Returns the library's time for a launch, for launches that are `launch_ns` nanoseconds apart.
fn library_launch_ns(launch_ns: u64) -> u64 {
    if launch_ns < 20 * US { LIBRARY_WARM_LAUNCH_NS } else { LIBRARY_COLD_LAUNCH_NS }
}

/// A loop of short kernels.
struct Loop {
    /// Time from one launch to the next, in nanoseconds.
    host: u64,
    /// Length of the kernels, in nanoseconds.
    kernel: u64,
    /// Number of launches from one wait for all of them to the next.
    wait_every: u64,
}

impl Loop {
    /// Returns the work done as a percentage of the work done without a limit, and the charge in percent. `lost_ns` is the time that the host
    /// loses after a nap of a given length.
    fn share(&self, percent: u32, lost_ns: impl Fn(u64) -> u64) -> (f64, f64) {
        let alone = {
            let gpu = Gpu::new();
            let start = gpu.now();
            self.run(&gpu, 20, || gpu.launch(gpu::stream(1), self.kernel), || gpu.synchronize(gpu::stream(1)));
            (gpu.now() - start) as f64 / 20.0
        };
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let stream = process.stream(0);
        let (mut from, mut rounds, mut used) = (gpu.now(), 0, 0);
        let (began, lost) = (from, Cell::new(0));
        while gpu.now() < began + 8 * S {
            if rounds == 0 && gpu.now() > began + S {
                from = gpu.now();
                used = process.meter.account.budget.used.load(Relaxed);
            }
            let launch = || {
                let before = gpu.now();
                gpu.pass(library_launch_ns(self.host));
                process.launch(&gpu, stream, 1, self.kernel);
                let napped = gpu.now() - before;
                if napped > MS {
                    lost.set(lost_ns(napped));
                }
                let late = lost.get().min(self.host / 2);
                lost.set(lost.get() - late);
                gpu.pass(late);
            };
            let wait = || {
                process.wait(&gpu, stream, true);
                gpu.pass(LIBRARY_WAIT_NS);
            };
            self.run(&gpu, 1, launch, wait);
            rounds += u32::from(from != began);
        }
        let wall = (gpu.now() - from) as f64 / 100.0;
        (f64::from(rounds) * alone / wall, (process.meter.account.budget.used.load(Relaxed) - used) as f64 / wall)
    }

    fn run(&self, gpu: &Gpu, rounds: u64, launch: impl Fn(), wait: impl Fn()) {
        for _ in 0..rounds {
            for _ in 0..self.wait_every {
                gpu.pass(self.host.saturating_sub(gpu.launch_ns.get()));
                launch();
            }
            wait();
        }
    }
}

/// The time lost grows with the nap, up to 30 ms, and slows the launches after it, as on an H200's host.
#[test]
fn hosts_that_are_slow_after_a_nap_get_their_share() {
    for (host, kernel, wait_every) in [(13_600, 7_000, 96), (13_600, 7_000, 24), (13_600, 3_000, 1_000), (25_000, 6_000, 200)] {
        let work = Loop { host, kernel, wait_every };
        for percent in [10, 25, 50, 75] {
            for loses in [0, 300, 600, 1_200] {
                let (share, charged) = work.share(percent, |nap| loses * US * nap.min(30 * MS) / (30 * MS));
                println!("{kernel} ns each {host}, {percent}%, loses {loses} us: {share:.2}, charged {charged:.2}");
                // The same loss is excused on each host, so those that lose less get a little more.
                assert!((share - f64::from(percent)).abs() < 2.3, "{percent}%: {share:.2}");
                assert!((charged - f64::from(percent)).abs() < 1.0, "{percent}%: charged {charged:.2}");
            }
        }
    }
}

/// A burst costs the host the same however long it is, and a launch sleeps for its whole wait.
#[test]
fn lone_streams_take_few_naps() {
    for percent in [10, 25] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let (stream, start) = (process.stream(0), gpu.now());
        while gpu.now() < start + 4 * S {
            let work = Loop { host: 13_600, kernel: 7_000, wait_every: 96 };
            work.run(&gpu, 1, || process.launch(&gpu, stream, 1, 7_000), || process.wait(&gpu, stream, true));
        }
        println!("{percent}%: {} naps a second", gpu.naps.get() / 4);
        assert!(gpu.naps.get() / 4 < 90, "{percent}%: {} naps a second", gpu.naps.get() / 4);
    }
}

/// A program that waits for the GPU has short bursts, however it waits.
#[test]
fn programs_that_wait_for_the_gpu_get_no_credit() {
    for (host, kernel, wait_every) in [(2_300, 20 * US, 16), (2_300, 5 * US, 1), (5_000, 200 * US, 4)] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
        let stream = process.stream(0);
        let (start, mut least) = (gpu.now(), 0);
        while gpu.now() < start + S {
            let launch = || process.launch(&gpu, stream, 1, kernel);
            Loop { host, kernel, wait_every }.run(&gpu, 1, launch, || process.wait(&gpu, stream, true));
            least = least.min(process.meter.account.budget.balance(gpu.now(), Rate::new(50).unwrap(), MAX_SAVED_NS));
        }
        println!("{wait_every} x {kernel} ns: {least}");
        assert!(least > -2 * MS as i64, "{wait_every} x {kernel} ns: {least}");
    }
}

/// Every launch is of a new kind, as with changing shapes. Each waits until the one before is measured, so the GPU is idle whenever one comes.
/// That is no sign of a slow host.
#[test]
fn launches_of_new_kinds_only_are_charged() {
    for (streams, kernel) in [(1, 50 * US), (1, 200 * US), (1, 3 * MS), (2, 50 * US), (2, 200 * US), (2, 3 * MS)] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 25, 1));
        let all: Vec<_> = (0..streams).map(|number| process.stream(number)).collect();
        let (start, rate) = (gpu.now(), Rate::new(25).unwrap());
        let (mut kind, mut least) = (0, 0);
        for stream in all.iter().cycle().take_while(|_| gpu.now() < start + 4 * S) {
            kind += 1;
            process.launch(&gpu, stream, kind, kernel);
            least = least.min(process.meter.account.budget.balance(gpu.now(), rate, MAX_SAVED_NS));
        }
        let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
        let share = used as f64 / (gpu.now() - start) as f64 * 100.0;
        println!("{streams} x {kernel} ns: {share:.2}%, charged {charged} of {used}, {least}");
        assert!(
            (24.0..26.0).contains(&share) && charged > used / 100 * 97,
            "{streams} x {kernel} ns: {share:.2}%, charged {charged} of {used}"
        );
        assert!(least > -(2 * kernel as i64) - MS as i64, "{streams} x {kernel} ns: {least}");
    }
}

/// New and known kinds in two streams.
#[test]
fn new_kinds_among_known_ones_are_charged() {
    for percent in [25, 50, 75] {
        for known in [10, 20] {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
            let streams = [process.stream(0), process.stream(1)];
            let (start, mut kind) = (gpu.now(), 1000);
            for stream in streams.iter().cycle().take_while(|_| gpu.now() < start + 3 * S) {
                kind += 1;
                process.launch(&gpu, stream, kind, 5 * US);
                (0..known).for_each(|_| process.launch(&gpu, stream, 1, 5 * US));
            }
            let share = gpu.used(start, gpu.now()) as f64 / (gpu.now() - start) as f64 * 100.0;
            assert!((-4.0..3.0).contains(&(share - f64::from(percent))), "{percent}%, {known}: {share:.1}%");
        }
    }
}
