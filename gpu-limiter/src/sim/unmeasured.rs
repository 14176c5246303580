//! Launches that cannot be measured as usual: they are measured in another way, or refused.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::{Engine, SUCCESS};
use crate::meter::MAX_STREAMS;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget, handle, new_stream};
use crate::stream::Stream;
use crate::{batch_close, cost_model, launch};

/// Launches a kernel into the program's stream with this number. Returns false if the launch was refused.
fn launch(gpu: &Gpu, process: &Process, place: &'static Stream, number: usize, kind: u64, nanos: u64) -> bool {
    let handle = gpu::stream(number);
    let call = || {
        gpu.launch(handle, nanos);
        SUCCESS
    };
    launch::launch(gpu, process.meter, (place, handle), cost_model::key(&[kind]), || false, call).is_some()
}

/// A program with more streams than the meter has places launches short kernels into one and long ones into another. An event in one says
/// nothing about the other.
#[test]
fn overflow_streams_are_charged_for_all_their_work() {
    for percent in [25, 50, 90] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        for number in 0..MAX_STREAMS as u64 {
            assert!(process.meter.stream(1000 + number, new_stream).is_some());
        }
        assert!(process.meter.stream(7, || panic!("all places are taken")).is_none());
        let place = process.meter.overflow_stream(new_stream).unwrap();
        assert!(std::ptr::eq(place, process.meter.overflow_stream(|| panic!("there is one already")).unwrap()));
        let start = gpu.now();
        while gpu.now() < start + 3 * S {
            launch(&gpu, &process, place, 0, 1, 700 * US);
            launch(&gpu, &process, place, 1, 2, 20 * US);
            launch(&gpu, &process, place, 2, 3, 200 * US);
        }
        let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
        let share = gpu.used(start + S, start + 3 * S) as f64 / (2 * S) as f64 * 100.0;
        println!("{percent}%: {share:.2}, used {used}, charged {charged}");
        // Each launch is measured separately, which costs an event of GPU time and so some of the share.
        assert!(charged + 10 * MS > used && share < f64::from(percent) + 1.0 && share > f64::from(percent) * 0.8, "{percent}%: {share:.2}");
    }
}

/// The first launch of a kernel loads it, behind other work in the stream or with the channels off: the GPU has not waited for that.
#[test]
fn loading_a_kernel_while_the_gpu_cannot_begin_is_no_part_of_its_time() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let (place, handle) = (process.meter.stream(9, new_stream).unwrap(), gpu::stream(0));
    batch_close::interrupt(&gpu, process.meter, place, handle);
    gpu.copy(handle, 40 * MS);
    let call = || {
        gpu.pass(10 * MS);
        gpu.launch(handle, 500 * US);
        SUCCESS
    };
    launch::launch(&gpu, process.meter, (place, handle), cost_model::key(&[1]), || false, call).unwrap();
    gpu.synchronize(handle);
    batch_close::finish(&gpu, process.meter);
    let charged = process.meter.account.budget.used.load(Relaxed);
    assert!((500 * US..600 * US).contains(&charged), "{charged}");
}

#[test]
fn without_events_there_are_no_launches() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let place = process.meter.stream(9, new_stream).unwrap();
    gpu.events_left.set(Some(5));
    let made = (0..200).filter(|_| launch(&gpu, &process, place, 0, 1, 2 * MS)).count();
    assert!((1..=5).contains(&made), "{made} launches with five events");
    gpu.events_left.set(None);
    let start = gpu.now();
    while gpu.now() < start + S {
        assert!(launch(&gpu, &process, place, 0, 1, 2 * MS), "there are events again");
    }
    let (used, charged) = (gpu.used(0, gpu.now()), process.meter.account.budget.used.load(Relaxed));
    assert!(charged + 10 * MS > used && used < 11 * S / 20, "used {used}, charged {charged}");
}

/// A program pauses after some launches, and waits for them long after they have ended, after a copy or not, or never. So the end of the last
/// one is not seen. The costs are still learned.
#[test]
fn launches_before_a_pause_without_a_wait_are_measured_too() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Then {
        Nothing,
        Waits,
        CopiesAndWaits,
    }
    let programs = [(1, 12, 600, 20), (3, 3, 600, 5), (7, 6, 600, 10), (1, 1, 2_000, 3), (40, 20, 80, 5)];
    for ((short, long, each, rest), then) in
        programs.iter().flat_map(|&program| [Then::Nothing, Then::Waits, Then::CopiesAndWaits].map(|then| (program, then)))
    {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 25, 1));
        let (stream, start, handle) = (process.stream(0), gpu.now(), gpu::stream(1));
        while gpu.now() < start + 6 * S {
            // After the first second the last launches take much longer.
            let last = if gpu.now() < start + S { 4 * US } else { each * US };
            (0..short).for_each(|_| process.launch(&gpu, stream, 1, 20 * US));
            (0..long).for_each(|_| process.launch(&gpu, stream, 2, last));
            gpu.pass(rest * MS);
            if then == Then::CopiesAndWaits {
                batch_close::interrupt(&gpu, process.meter, stream, handle);
                gpu.copy(handle, 50 * US);
            }
            if then != Then::Nothing {
                process.wait(&gpu, stream, true);
            }
        }
        let share = gpu.used(start + 3 * S, start + 6 * S) as f64 / (3 * S) as f64 * 100.0;
        println!("{short} and {long}, {then:?}: {share:.2}%");
        assert!(share < 26.0, "{short} and {long}, {then:?}: {share:.2}%");
    }
}

/// While the driver loads a function for one stream, another stream's kernels run. They are charged, and the loading is not.
#[test]
fn loading_beside_another_stream_is_not_charged_but_its_kernels_are() {
    for loading in [500 * US, 2 * MS, 8 * MS, 30 * MS] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
        let (busy, other, start) = (process.stream(0), process.stream(1), gpu.now());
        for kind in 100.. {
            (0..20).for_each(|_| process.launch(&gpu, busy, 1, 100 * US));
            process.launch_after(&gpu, other, kind, 50 * US, loading);
            if gpu.now() > start + 4 * S {
                break;
            }
        }
        let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
        let share = used as f64 / (gpu.now() - start) as f64 * 100.0;
        println!("{} us: {share:.2}%, used {used}, charged {charged}", loading / US);
        // One that lasts at the end may be charged in advance.
        assert!(
            charged.abs_diff(used) < used / 18 + loading && share < 50.6,
            "{} us: {share:.2}%, used {used}, charged {charged}",
            loading / US
        );
    }
}

/// A copy, which takes no GPU time, holds the stream up for as long as the channels are off.
#[test]
fn time_off_before_the_first_kernel_is_not_charged() {
    let (gpu, budget) = (Gpu::new(), budget());
    let process = Process::new(budget, 50, 1);
    let (stream, off_times) = (process.stream(0), process.meter.account.off_times);
    off_times.begin(gpu.now());
    gpu.copy(handle(stream), 300 * MS);
    let on_at = gpu.free_at(handle(stream));
    process.launch(&gpu, stream, 1, 2 * MS);
    gpu.pass(on_at - gpu.now());
    off_times.end(on_at);
    process.wait(&gpu, stream, true);
    let used = budget.used.load(Relaxed);
    assert!((1_900_000..2_100_000).contains(&used), "{used}");
}
