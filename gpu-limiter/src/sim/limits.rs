//! The limit as a whole: shares, charges, and waits of single processes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::batch_close;
use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget, busy, give_turn, shares};
use crate::tuning::PERIOD_NS;

/// Returns the work done after the first second by kernels of one length, as a percentage of the work done without a limit.
fn progress(percent: u32, kernel: u64, streams: u64, seconds: u64) -> f64 {
    let (gpu, start, _) = busy(percent, kernel, streams, seconds * S);
    let done = gpu.finished(start + S, start + seconds * S) as f64;
    let alone = (kernel + gpu::BETWEEN_NS) as f64 / streams as f64;
    done * alone / ((seconds - 1) * S) as f64 * 100.0
}

/// A waiting launch resumes at the new rate at once, whatever its debt: debt is GPU time.
#[test]
fn a_change_of_the_limit_ends_waits_for_budget() {
    // A kernel of unexpected length leaves a debt that takes a second to pay off at 10%, and a sixteenth of one at 80%.
    for (kernel, percent) in [(5 * MS, 0), (5 * MS, 99), (100 * MS, 0), (100 * MS, 80), (100 * MS, 5)] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 10, 1));
        let stream = process.stream(0);
        process.launch(&gpu, stream, 1, kernel);
        gpu.synchronize(gpu::stream(1));
        let (changed, account) = (gpu.now() + 3 * MS, process.meter.account);
        *gpu.scheduled.borrow_mut() = Some((changed, Box::new(move || account.set_percent(percent))));
        process.launch(&gpu, stream, 1, kernel);
        // The initial balance is 1 ms. Before the change the debt was paid off at 10%. A waiting launch needs the budget of one period more.
        let at_new_rate = |nanos: u64| if percent == 0 { 0 } else { nanos * 100 / u64::from(percent) };
        let owed = changed + at_new_rate(kernel - MS - (changed - gpu.started_at(0)) / 10);
        let late = gpu.started_at(1).saturating_sub(owed);
        assert!(
            gpu.started_at(1) >= owed && late < MS + if percent == 0 { 0 } else { PERIOD_NS },
            "{kernel} to {percent}%: {} us late",
            late / US
        );
    }
}

/// The arbiter has to see that a tenant with long kernels is always busy, long before its next launch goes.
#[test]
fn a_wait_for_budget_is_told_while_it_lasts() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 10, 1));
    let stream = process.stream(0);
    process.launch(&gpu, stream, 1, 100 * MS);
    gpu.synchronize(gpu::stream(1));
    let account = process.meter.account;
    let told: &'static AtomicU64 = Box::leak(Box::default());
    let middle = gpu.now() + 400 * MS;
    *gpu.scheduled.borrow_mut() = Some((middle, Box::new(move || told.store(account.budget.waited.load(Relaxed), Relaxed))));
    process.launch(&gpu, stream, 1, 100 * MS);
    assert!(gpu.now() > middle + 300 * MS);
    assert!((350 * MS..=400 * MS).contains(&told.load(Relaxed)), "{} ms", told.load(Relaxed) / MS);
}

#[test]
fn back_to_back_kernels_get_their_share() {
    for kernel in [5 * US, 20 * US, 200 * US, 2 * MS, 20 * MS, 100 * MS] {
        for percent in [10, 25, 50, 75, 90] {
            let (gpu, start, process) = busy(percent, kernel, 1, 6 * S);
            let (share, spread) = shares(&gpu, start + S, start + 6 * S);
            let first = gpu.used(start, start + S) as f64 / 1e7;
            let (want, what) =
                (f64::from(percent), format!("{percent}% of {} us: {share:.2} +- {spread:.2}, first second {first:.2}", kernel / US));
            println!("{what}, naps/s {}", gpu.naps.get() / 6);
            // In a second with one or two kernels of 100 ms the share is exact to one kernel only.
            assert!((share - want).abs() < 1.0 + kernel as f64 / 5e9 * 100.0, "{what}");
            assert!(spread <= 2.0 || kernel > 5 * MS, "{what}");
            assert!((first - want).abs() < 3.0 + kernel as f64 / 1e7, "{what}");
            assert!(gpu.naps.get() < 6 * if kernel > 5 * MS { 1000 } else { 300 }, "{what}: {} naps", gpu.naps.get());
            let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
            assert!(used.abs_diff(charged) < used / 100 + kernel.max(10 * MS), "{what}: used {used}, charged {charged}");
        }
    }
}

#[test]
fn work_done_is_proportional_to_the_share() {
    for (kernel, streams) in [(5 * US, 1), (20 * US, 1), (200 * US, 1), (20 * US, 4), (200 * US, 4), (2 * MS, 4), (200 * US, 16)] {
        for percent in [10, 50, 90] {
            let share = progress(percent, kernel, streams, 4);
            let what = format!("{percent}% of {streams} x {} us: {share:.2} of the work", kernel / US);
            println!("{what}");
            // Sixteen streams that stop together differ by up to one kernel.
            let least = if streams > 4 { 2.0 } else { 0.6 };
            assert!(share > f64::from(percent) - least && share < f64::from(percent) + 0.6, "{what}");
        }
    }
}

#[test]
fn kinds_of_varying_length_get_their_share() {
    let mut random = 1u64;
    for percent in [25, 50, 75] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let (stream, start) = (process.stream(0), gpu.now());
        while gpu.now() < start + 4 * S {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // One kind takes 2 µs to 2 ms; other kinds come in between.
            process.launch(&gpu, stream, 1, (2 * US) << (random >> 60).min(10));
            process.launch(&gpu, stream, 2 + (random >> 50) % 7, 30 * US);
        }
        let (share, _) = shares(&gpu, start + S, start + 4 * S);
        assert!((share - f64::from(percent)).abs() < 1.5, "{percent}%: {share:.2}");
    }
}

/// With `CUDA_LAUNCH_BLOCKING` a call lasts as long as the kernel. That is not loading time.
#[test]
fn blocking_launches_are_charged() {
    for kernel in [300 * US, 3 * MS] {
        for new in [0, 1] {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), 25, 1));
            let (stream, start, mut kind) = (process.stream(0), gpu.now(), 0);
            while gpu.now() < start + 4 * S {
                kind += new;
                process.launch_around(&gpu, stream, kind, || {
                    gpu.launch(gpu::stream(1), kernel);
                    gpu.synchronize(gpu::stream(1));
                });
            }
            let share = gpu.used(start, gpu.now()) as f64 / (gpu.now() - start) as f64 * 100.0;
            assert!((share - 25.0).abs() < 1.5, "{kernel} ns, {new}: {share:.2}%");
        }
    }
}

/// With few launches and much budget too: an open batch is not charged, and no observer sees its work.
#[test]
fn no_batch_stays_open_for_long() {
    for (percent, kinds, host) in [(10, 8, 20 * US), (10, 8, 100 * US), (50, 1, 100 * US), (90, 1, 400 * US)] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let (stream, start) = (process.stream(0), gpu.now());
        let activity = || (process.meter.account.budget.activity.load(Relaxed), gpu.naps.get());
        let (mut launches, mut since, mut longest) = (0, (start, activity()), 0);
        while gpu.now() < start + S {
            process.launch(&gpu, stream, launches % kinds, 3 * US);
            launches += 1;
            gpu.pass(host);
            if activity() != since.1 {
                since = (gpu.now(), activity());
            }
            longest = longest.max(gpu.now() - since.0);
        }
        println!("{percent}%, {kinds} kinds, each {host} ns: {longest}");
        assert!(longest < 5 * MS, "{percent}%, {kinds} kinds, each {host} ns: {longest}");
    }
}

/// The arbiter counts batches to see which container is active, and another container waits for their end.
#[test]
fn batches_are_short_in_a_turn() {
    for host in [2_300, 100 * US] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 90, 1));
        let (stream, start) = (process.stream(0), gpu.now());
        gpu.launch_ns.set(host);
        let activity = || (process.meter.account.budget.activity.load(Relaxed), gpu.naps.get());
        let (mut since, mut seen, mut launches) = ((start, 0), activity(), 0);
        let (mut longest, mut most) = (0, 0);
        while gpu.now() < start + 500 * MS {
            give_turn(&process);
            process.launch(&gpu, stream, 1, 10 * US);
            launches += 1;
            if activity() != seen {
                (since, seen) = ((gpu.now(), launches), activity());
            }
            if gpu.now() > start + 50 * MS {
                (longest, most) = (longest.max(gpu.now() - since.0), most.max(launches - since.1));
            }
            if launches % 1000 == 0 {
                process.wait(&gpu, stream, true);
                gpu.pass(20 * MS);
                since = (gpu.now(), launches);
            }
        }
        println!("each {host} ns: {longest} ns and {most} launches");
        assert!(longest < 3 * MS / 2 && most <= 256, "each {host} ns: {longest} ns and {most} launches");
    }
}

/// Launches that call the driver take a few microseconds longer: the fewer there are, the less they show in the 99th percentile.
#[test]
fn about_one_launch_in_a_hundred_calls_the_driver() {
    for (percent, threads, waits) in [(50, 1, true), (90, 1, true), (90, 4, true), (50, 1, false), (90, 1, false)] {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        let streams: Vec<_> = (0..threads).map(|number| process.stream(number)).collect();
        let (mut launches, mut calling) = (0, 0);
        for burst in 0..60 {
            for launch in 0..900 {
                for stream in &streams {
                    let before = gpu.calls.get();
                    process.launch(&gpu, stream, 1, 2 * US);
                    // The first launches of a burst take longer natively too.
                    if burst > 5 && launch > 50 {
                        (launches, calling) = (launches + 1, calling + u32::from(gpu.calls.get() != before));
                    }
                }
            }
            streams.iter().for_each(|stream| process.wait(&gpu, stream, waits));
            gpu.pass(if percent < 90 { 24 * MS } else { 12 * MS });
        }
        let what = format!("{percent}% in {threads} streams{}: {calling} of {launches}", if waits { "" } else { ", without waits" });
        println!("{what} launches called the driver");
        assert!(calling * if waits { 100 } else { 90 } < launches, "{what}");
    }
}

#[test]
fn a_program_below_its_limit_is_not_held_back() {
    // 2 ms of GPU work, then 3 ms without: 40% of the time.
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let (stream, start) = (process.stream(0), gpu.now());
    let mut rounds = 0;
    while gpu.now() < start + 4 * S {
        for _ in 0..100 {
            process.launch(&gpu, stream, 1, 18 * US);
        }
        gpu.synchronize(gpu::stream(1));
        gpu.pass(3 * MS);
        rounds += 1;
    }
    assert!(rounds >= 780, "{rounds} rounds; alone there would be about 798");
    let (used, charged) = (gpu.used(start, gpu.now()), process.meter.account.budget.used.load(Relaxed));
    assert!(used.abs_diff(charged) < used / 33, "used {used}, charged {charged}");
}

#[test]
fn an_endless_kernel_is_charged_and_other_streams_go_on() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let (endless, other, start) = (process.stream(0), process.stream(1), gpu.now());
    process.launch(&gpu, endless, 1, 10 * MS);
    gpu.synchronize(gpu::stream(1));
    process.launch(&gpu, endless, 1, 3_600 * S);
    let mut launches = 0;
    while gpu.now() < start + 100 * S {
        process.launch(&gpu, other, 2, 10 * US);
        launches += 1;
    }
    assert!((100..1000).contains(&launches), "{launches} launches meanwhile");
    let charged = process.meter.account.budget.used.load(Relaxed);
    assert!(charged > 95 * S, "charged {charged}");
}

#[test]
fn copies_and_waits_are_not_charged() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let (stream, start, handle) = (process.stream(0), gpu.now(), gpu::stream(1));
    let mut kernels = 0;
    while gpu.now() < start + 2 * S {
        process.launch(&gpu, stream, 1, 200 * US);
        kernels += 1;
        batch_close::interrupt(&gpu, process.meter, stream, handle);
        // A copy engine works, in the same stream.
        gpu.copy(handle, 800 * US);
        gpu.synchronize(handle);
    }
    assert!(kernels > 1900, "{kernels}; alone there would be about 1980");
    let (used, charged) = (kernels * 200 * US, process.meter.account.budget.used.load(Relaxed));
    assert!(used.abs_diff(charged) < used / 20, "used {used}, charged {charged}");
}

#[test]
fn a_share_enforced_by_mps_is_only_accounted() {
    for (mps, most) in [(30, 1.02), (31, 0.31), (0, 0.31)] {
        let (gpu, process) = (Gpu::new(), Process::with_mps(budget(), 30, mps));
        let (stream, start) = (process.stream(0), gpu.now());
        while gpu.now() < start + 2 * S {
            process.launch(&gpu, stream, 1, 200 * US);
        }
        let (used, charged) = (gpu.used(start, start + 2 * S), process.meter.account.budget.used.load(Relaxed));
        let share = used as f64 / (2 * S) as f64;
        assert!(share < most && share > most - 0.05, "MPS {mps}: {share}");
        assert!(used.abs_diff(charged) < used / 50 + 30 * MS, "MPS {mps}: used {used}, charged {charged}");
    }
}

#[test]
fn a_changed_limit_applies_to_a_running_program() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 20, 1));
    let (stream, start) = (process.stream(0), gpu.now());
    let run = |until: u64| {
        while gpu.now() < until {
            process.launch(&gpu, stream, 1, 200 * US)
        }
    };
    run(start + 2 * S);
    process.meter.account.set_percent(60);
    run(start + 4 * S);
    let (before, after) = (shares(&gpu, start + S, start + 2 * S).0, shares(&gpu, start + 2 * S + 200 * MS, start + 4 * S).0);
    assert!((before - 20.0).abs() < 1.0 && (after - 60.0).abs() < 1.0, "{before} {after}");
}

/// PyTorch programs launch some kernels, wait for all of them, and repeat.
#[test]
fn programs_that_wait_after_a_few_launches_get_their_share() {
    for (launches, kernel) in [(4, 206 * US), (96, 13 * US), (4, 980 * US), (1, 50 * US)] {
        // Time of one round without a limit.
        let gpu = Gpu::new();
        let start = gpu.now();
        for _ in 0..100 {
            (0..launches).for_each(|_| gpu.launch(gpu::stream(1), kernel));
            gpu.synchronize(gpu::stream(1));
            gpu.pass(20 * US);
        }
        let alone = (gpu.now() - start) / 100;
        for (percent, calls) in [(25, false), (50, false), (75, false), (25, true), (50, true), (75, true)] {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
            let (stream, mut rounds, mut start) = (process.stream(0), 0, gpu.now());
            let first = start;
            while gpu.now() < first + 4 * S {
                if rounds == 0 && gpu.now() > first + S {
                    start = gpu.now();
                }
                // The first launch of a function loads it.
                let is_first = gpu.now() < first + MS;
                (0..launches).for_each(|n| process.launch_after(&gpu, stream, 1, kernel, if is_first && n == 0 { 30 * MS } else { 0 }));
                process.wait(&gpu, stream, calls);
                gpu.pass(20 * US);
                rounds += u64::from(start != first);
            }
            let share = (rounds * alone) as f64 / (gpu.now() - start) as f64 * 100.0;
            println!("{launches} x {} us and a wait{}, {percent}%: {share:.2}", kernel / US, if calls { "" } else { " by querying" });
            // The pause after a wait is not charged, so the program gets a larger share of its own speed than of the GPU.
            let most = f64::from(percent) * alone as f64 / (launches * (kernel + gpu::BETWEEN_NS)) as f64;
            assert!(
                share > f64::from(percent) * 0.98 - 0.5 && share < most * 1.05 + 1.0,
                "{launches} x {}: {share:.2}, at most {most:.2}",
                kernel / US
            );
        }
    }
}
