//! Collective kernels: two GPUs that add up their results, in kernels that wait for each other.

use crate::engine::{Engine, SUCCESS};
use crate::launch::Launch;
use crate::sim::gpu;
use crate::sim::gpu::{BETWEEN_NS, Gpu};
use crate::sim::process::{MS, Process, S, US, budget, handle};
use crate::stream::Stream;
use crate::{batch_close, cost_model, launch};

const SUM_NS: u64 = 50 * US;
const WORK_NS: u64 = 100 * US;
const KERNELS: u64 = 10;

struct Rank {
    gpu: Gpu,
    process: Process,
    work: &'static Stream,
    sums: &'static Stream,
}

impl Rank {
    fn new(percent: u32) -> Self {
        let process = Process::new(budget(), percent, 1);
        let (work, sums) = (process.stream(0), process.stream(1));
        Self { gpu: Gpu::new(), process, work, sums }
    }

    /// Begins the launch of the sum. Returns it with the earliest time at which the sum can begin.
    fn begin(&self) -> (Launch<'static>, u64) {
        let (work, sums) = (gpu::stream(1), gpu::stream(2));
        // As after `cuStreamWaitEvent`.
        batch_close::interrupt(&self.gpu, self.process.meter, self.sums, sums);
        let rate = self.process.meter.account.rate().unwrap();
        let guard = self.sums.lock();
        let mut launch = Launch::new(&self.gpu, self.process.meter, (self.sums, sums), guard, cost_model::key(&[77]), rate, || true);
        launch.begin(&self.gpu);
        (launch, self.gpu.free_at(work).max(self.gpu.free_at(sums)).max(self.gpu.now()) + BETWEEN_NS)
    }

    fn end(&self, mut launch: Launch<'_>, from: u64, to: u64) {
        let sums = gpu::stream(2);
        // It waits for the work before it, and then for the other GPU's sum.
        let begins = (self.gpu.free_at(sums) + BETWEEN_NS).max(self.gpu.now() + 2 * US).max(from);
        let idle = begins.saturating_sub(self.gpu.free_at(sums));
        if idle > BETWEEN_NS {
            self.gpu.copy(sums, idle - BETWEEN_NS);
        }
        self.gpu.launch(sums, to.saturating_sub(begins).max(US));
        launch.end(&self.gpu, true);
        self.gpu.synchronize(sums);
    }
}

#[test]
fn naps_of_one_gpu_are_not_charged_to_the_other() {
    for (one, other) in [(25, 60), (30, 30), (10, 90), (50, 50)] {
        let ranks = [Rank::new(one), Rank::new(other)];
        let start = ranks[0].gpu.now();
        let mut steps = 0;
        while ranks.iter().all(|rank| rank.gpu.now() < start + 10 * S) {
            steps += 1;
            for rank in &ranks {
                (0..KERNELS).for_each(|_| rank.process.launch(&rank.gpu, rank.work, 1, WORK_NS));
            }
            let [(first, a), (second, b)] = ranks.each_ref().map(Rank::begin);
            let done = a.max(b) + SUM_NS;
            ranks[0].end(first, a, done);
            ranks[1].end(second, b, done);
        }
        // Time of the work and the sums, as a share of the time of the GPU with the lower limit.
        let share = f64::from(steps) * (KERNELS * (WORK_NS + BETWEEN_NS) + SUM_NS) as f64 / (10 * S) as f64 * 100.0;
        let apart = ranks[0].gpu.now().abs_diff(ranks[1].gpu.now()) / MS;
        println!("{one} and {other}: {steps} steps, {share:.1}% of the time at the lower limit; {apart} ms apart");
        let limit = f64::from(one.min(other));
        assert!((limit * 0.8..limit + 1.0).contains(&share), "{one} and {other}: {share:.1}%");
    }
}

/// Makes a launch that may be collective.
fn launch(gpu: &Gpu, process: &Process, stream: &Stream, kind: u64, nanos: u64, collective: bool) {
    let handle = handle(stream);
    let call = || {
        gpu.launch(handle, nanos);
        SUCCESS
    };
    assert_eq!(launch::launch(gpu, process.meter, (stream, handle), cost_model::key(&[kind]), || collective, call), Some(SUCCESS));
}

/// Returns a program's share of the GPU's time, in percent.
fn share(percent: u32, streams: u64, mut step: impl FnMut(&Gpu, &Process, &[&'static Stream])) -> f64 {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
    let streams: Vec<_> = (0..streams).map(|number| process.stream(number)).collect();
    let start = gpu.now();
    while gpu.now() < start + 5 * S {
        step(&gpu, &process, &streams);
    }
    gpu.used(start, gpu.now()) as f64 / (gpu.now() - start) as f64 * 100.0
}

/// The kernels between the sums are charged as measured, however long the first sum waited.
#[test]
fn kernels_between_collectives_are_charged() {
    for first in [20 * US, 100 * MS] {
        for (few, many) in [(9, 9), (3, 15), (12, 18)] {
            let mut sum = first;
            let share = share(25, 1, |gpu, process, streams| {
                for count in [few, many] {
                    (0..count).for_each(|_| launch(gpu, process, streams[0], 1, 50 * US, false));
                    launch(gpu, process, streams[0], 77, std::mem::replace(&mut sum, 20 * US), true);
                }
            });
            // The first wait is not charged.
            let most = 25.5 + first as f64 / (5 * S) as f64 * 100.0;
            assert!((24.0..most).contains(&share), "first {first}, {few} and {many}: {share:.1}%");
        }
    }
}

/// Collective kernels that need not wait are charged once where they overlap other work.
#[test]
fn overlapping_collectives_are_charged_once() {
    let overlapping = share(50, 2, |gpu, process, streams| {
        launch(gpu, process, streams[0], 1, 200 * US, false);
        launch(gpu, process, streams[1], 77, 190 * US, true);
    });
    assert!((48.0..51.0).contains(&overlapping), "{overlapping:.1}%");
    for (percent, count) in [(25, 2), (50, 2), (25, 4), (50, 4)] {
        let share = share(percent, count, |gpu, process, streams| {
            streams.iter().for_each(|stream| launch(gpu, process, stream, 77, 400 * US, true));
        });
        let limit = f64::from(percent);
        // Streams of collectives that stop together differ by up to one kernel each burst.
        assert!((limit - 7.0..limit + 1.0).contains(&share), "{percent}% of {count}: {share:.1}%");
    }
}

/// The size of a sum does not show in its kernel: a larger sum is charged as the small one at first.
#[test]
fn larger_collectives_are_charged_in_the_end() {
    let mut sum = 200 * US;
    let share = share(25, 1, |gpu, process, streams| {
        launch(gpu, process, streams[0], 77, std::mem::replace(&mut sum, 5 * MS), true);
    });
    assert!(share < 34.0, "{share:.1}%");
}
