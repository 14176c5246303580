//! Two GPUs that work together: each sums up with the other what it has computed, in a kernel that waits for the other's.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;
use crate::engine::SUCCESS;
use crate::launch::Launch;
use crate::sim::gpu;
use crate::sim::gpu::{BETWEEN, Gpu};
use crate::sim::limits::{MS, Process, S, US, budget};
use crate::stream::Stream;
use crate::{batch_close, cost_model, launch};

const SUM: u64 = 50 * US;
const WORK: u64 = 100 * US;
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

    /// The sum may be launched from here on, and could begin then.
    fn begin(&self) -> (Launch<'static>, u64) {
        let (work, sums) = (gpu::stream(1), gpu::stream(2));
        // As after `cuStreamWaitEvent`.
        batch_close::interrupt(&self.gpu, self.process.meter, self.sums, sums);
        let rate = self.process.meter.account.rate().unwrap();
        let claim = self.sums.claim();
        let mut launch = Launch::new(&self.gpu, self.process.meter, (self.sums, sums), claim, cost_model::key(&[77]), rate, || true);
        launch.begin(&self.gpu);
        (launch, self.gpu.free(work).max(self.gpu.free(sums)).max(self.gpu.now()) + BETWEEN)
    }

    fn end(&self, mut launch: Launch<'_>, from: u64, to: u64) {
        let sums = gpu::stream(2);
        // It waits for the work before it, and then for the other's.
        let begins = (self.gpu.free(sums) + BETWEEN).max(self.gpu.now() + 2 * US).max(from);
        let idle = begins.saturating_sub(self.gpu.free(sums));
        if idle > BETWEEN {
            self.gpu.copy(sums, idle - BETWEEN);
        }
        self.gpu.launch(sums, to.saturating_sub(begins).max(US));
        launch.end(&self.gpu, true);
        self.gpu.synchronize(sums);
    }
}

#[test]
fn pauses_of_one_are_not_paid_for_by_the_other() {
    for (one, other) in [(25, 60), (30, 30), (10, 90), (50, 50)] {
        let ranks = [Rank::new(one), Rank::new(other)];
        let start = ranks[0].gpu.now();
        let mut steps = 0;
        while ranks.iter().all(|rank| rank.gpu.now() < start + 10 * S) {
            steps += 1;
            for rank in &ranks {
                (0..KERNELS).for_each(|_| rank.process.launch(&rank.gpu, rank.work, 1, WORK));
            }
            let [(first, a), (second, b)] = ranks.each_ref().map(Rank::begin);
            let done = a.max(b) + SUM;
            ranks[0].end(first, a, done);
            ranks[1].end(second, b, done);
        }
        // Of the time of the one that has less, what the work and the sum take of it.
        let share = f64::from(steps) * (KERNELS * (WORK + BETWEEN) + SUM) as f64 / (10 * S) as f64 * 100.0;
        let apart = ranks[0].gpu.now().abs_diff(ranks[1].gpu.now()) / MS;
        println!("{one} and {other}: {steps} steps, {share:.1}% of the lesser's time; {apart} ms apart");
        let limit = f64::from(one.min(other));
        assert!((limit * 0.8..limit + 1.0).contains(&share), "{one} and {other}: {share:.1}%");
    }
}

/// Launches into one stream, of which some wait for other GPUs.
fn launch(gpu: &Gpu, process: &Process, stream: &Stream, kind: u64, nanos: u64, collective: bool) {
    let handle = gpu::stream(stream.id.load(Relaxed) as usize);
    let call = || {
        gpu.launch(handle, nanos);
        SUCCESS
    };
    assert_eq!(launch::launch(gpu, process.meter, (stream, handle), cost_model::key(&[kind]), || collective, call), Some(SUCCESS));
}

/// The share that a program got of the GPU, in percent.
fn share(percent: u32, streams: u64, mut step: impl FnMut(&Gpu, &Process, &[&'static Stream])) -> f64 {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
    let streams: Vec<_> = (0..streams).map(|number| process.stream(number)).collect();
    let start = gpu.now();
    while gpu.now() < start + 5 * S {
        step(&gpu, &process, &streams);
    }
    gpu.used(start, gpu.now()) as f64 / (gpu.now() - start) as f64 * 100.0
}

/// However long the first sum waited, what is between the sums is charged as it is.
#[test]
fn kernels_between_sums_are_paid_for() {
    for first in [20 * US, 100 * MS] {
        for (few, many) in [(9, 9), (3, 15), (12, 18)] {
            let mut sum = first;
            let share = share(25, 1, |gpu, process, streams| {
                for count in [few, many] {
                    (0..count).for_each(|_| launch(gpu, process, streams[0], 1, 50 * US, false));
                    launch(gpu, process, streams[0], 77, std::mem::replace(&mut sum, 20 * US), true);
                }
            });
            // The first wait is nobody's.
            let most = 25.5 + first as f64 / (5 * S) as f64 * 100.0;
            assert!((24.0..most).contains(&share), "first {first}, {few} and {many}: {share:.1}%");
        }
    }
}

/// What waits for nobody is charged once, whatever it is called.
#[test]
fn sums_beside_others_are_paid_for_once() {
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
        assert!((limit - 2.0..limit + 1.0).contains(&share), "{percent}% of {count}: {share:.1}%");
    }
}

/// How much a sum adds up is not known from its kernel: a larger one is charged as the small one for a while.
#[test]
fn larger_sums_come_to_be_paid_for() {
    let mut sum = 200 * US;
    let share = share(25, 1, |gpu, process, streams| {
        launch(gpu, process, streams[0], 77, std::mem::replace(&mut sum, 5 * MS), true);
    });
    assert!(share < 33.0, "{share:.1}%");
}
