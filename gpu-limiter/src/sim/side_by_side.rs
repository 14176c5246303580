//! Concurrent streams.

use std::sync::atomic::Ordering::Relaxed;

use crate::batch_close;
use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget, busy, handle, shares};
use crate::tuning::MIN_PAUSE_NS;

#[test]
fn overlapping_streams_count_once() {
    for percent in [25, 50, 90] {
        for kernel in [20 * US, 200 * US, 2 * MS] {
            let (gpu, start, process) = busy(percent, kernel, 4, 4 * S);
            let (share, spread) = shares(&gpu, start + S, start + 4 * S);
            let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
            println!("{percent}% of 4 x {} us: {share:.2} +- {spread:.2}, used {used}, charged {charged}", kernel / US);
            assert!((share - f64::from(percent)).abs() < 1.2, "{percent}% of 4 x {} us: {share:.2}", kernel / US);
        }
    }
}

/// Each driver call costs a fraction of a microsecond.
#[test]
fn few_driver_calls_are_made() {
    for (streams, most) in [(1, 2.0), (4, 2.5), (16, 2.5)] {
        for percent in [25, 50, 90] {
            let (gpu, start, _process) = busy(percent, 200 * US, streams, 4 * S);
            let each = gpu.calls.get() as f64 / gpu.finished(start, gpu.now()) as f64;
            println!("{percent}% of {streams} streams: {each:.2} calls for each launch");
            assert!(each < most, "{percent}% of {streams} streams: {each:.2} calls for each launch");
        }
    }
}

/// One thread that waits for nothing: a long kernel, then an endless number of short ones in another stream.
#[test]
fn overlapped_launches_stay_within_the_limit() {
    for percent in [5, 10, 25, 50] {
        for long_kernel in [20 * MS, 50 * MS, 100 * MS] {
            for kernel in [20 * US, 200 * US, 500 * US] {
                let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
                let (long, short) = (process.stream(0), process.stream(1));
                for (stream, length) in [(short, kernel), (long, long_kernel)] {
                    process.launch(&gpu, stream, length, length);
                    gpu.synchronize(handle(stream));
                }
                process.launch(&gpu, long, long_kernel, long_kernel);
                let start = gpu.now();
                let throttle = |gpu: &Gpu| {
                    // The driver accepts about a thousand launches ahead.
                    let handle = handle(short);
                    let ahead = gpu.free_at(handle).saturating_sub(gpu.now());
                    gpu.pass(ahead.saturating_sub(1000 * kernel));
                };
                while gpu.now() < start + 10 * S {
                    process.launch(&gpu, short, kernel, kernel);
                    throttle(&gpu);
                }
                let share = gpu.used(start, start + 10 * S) as f64 / 1e8;
                let most = f64::from(percent) + 1.0 + long_kernel as f64 / 1e8;
                assert!(share < most, "{percent}% of {} ms and then {} us: {share:.2}", long_kernel / MS, kernel / US);
            }
        }
    }
}

/// Returns the highest utilization of any second in steps of 100 ms, in percent.
fn busiest_second(gpu: &Gpu, start: u64, end: u64) -> f64 {
    let most = (0..).map(|n| start + n * 100 * MS).take_while(|at| at + S <= end).map(|at| gpu.used(at, at + S)).max();
    most.unwrap() as f64 / 1e7
}

/// Kernels that fill the GPU run one by one, whatever their streams: one long kernel does not justify as much work in each other stream.
#[test]
fn streams_of_kernels_that_fill_the_gpu_hold_the_limit_each_second() {
    for streams in [2, 4, 8, 16] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 10, 1));
        gpu.is_exclusive.set(true);
        let all: Vec<_> = (0..streams).map(|number| process.stream(number)).collect();
        for (stream, kernel) in all.iter().map(|stream| (stream, 200 * US)).chain([(&all[0], 20 * MS)]) {
            process.launch(&gpu, stream, kernel, kernel);
            gpu.synchronize(handle(stream));
        }
        let start = gpu.now();
        process.launch(&gpu, all[0], 20 * MS, 20 * MS);
        while gpu.now() < start + 4 * S {
            all[1..].iter().for_each(|stream| process.launch(&gpu, stream, 200 * US, 200 * US));
        }
        let most = busiest_second(&gpu, start, start + 4 * S);
        println!("{streams} streams: {most:.1}");
        assert!(most < 13.5, "{streams} streams: {most:.1}");
    }
}

/// One stream has many short batches, as it copies after each kernel. Another stream's work at the same time is charged when its batch ends. Up to
/// ef0aac2 the gaps between the short batches were forgotten by then: 97% of the GPU at a limit of 50%.
#[test]
fn long_batches_that_overlap_many_short_ones_are_charged() {
    for (copy, copies, kernel, kernels, percent) in
        [(20, 5, 50, 3, 50), (20, 5, 14, 8, 50), (50, 3, 100, 2, 25), (20, 10, 14, 20, 25), (100, 2, 14, 8, 25), (100, 1, 14, 15, 80)]
    {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let (copying, working, start) = (process.stream(0), process.stream(1), gpu.now());
        let [first, second] = [0, 1].map(gpu::stream);
        while gpu.now() < start + 4 * S {
            for _ in 0..copies {
                process.launch(&gpu, copying, 1, 14 * US);
                batch_close::interrupt(&gpu, process.meter, copying, first);
                gpu.copy(first, copy * US);
            }
            (0..kernels).for_each(|_| process.launch(&gpu, working, 2, kernel * US));
            let ahead = gpu.free_at(first).max(gpu.free_at(second)).saturating_sub(gpu.now());
            gpu.pass(ahead.saturating_sub(MS));
        }
        let (used, most) = (gpu.used(start, gpu.now()), gpu.used_with_pauses(start, gpu.now(), MIN_PAUSE_NS));
        let charged = process.meter.account.budget.used.load(Relaxed);
        let share = used as f64 / (gpu.now() - start) as f64 * 100.0;
        let case =
            format!("{copies} copies of {copy} us, {kernels} kernels of {kernel}: {share:.1}% of {percent}, {charged} of {used} to {most}");
        println!("{case}");
        assert!(charged > used / 50 * 49 && charged < most / 50 * 51 && share < f64::from(percent) + 1.0, "{case}");
    }
}
