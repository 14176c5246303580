//! Several processes that share a container's budget.

use vgpu_region::budget::Rate;

use crate::account::Verdict;
use crate::engine::Engine;
use crate::sim::gpu::Gpu;
use crate::sim::limits::{MS, Process, S, US, budget};
use crate::stream::Batch;

/// What the processes of one container get in 20 s, that each run one kernel after the other and want so much budget before they go on.
fn shared<const N: usize>(percent: u32, kernels: [u64; N], least: [i64; N], seed: u64) -> [u64; N] {
    shared_for(20 * S, percent, kernels, least, seed)
}

/// The same in `length` nanoseconds.
pub fn shared_for<const N: usize>(length: u64, percent: u32, kernels: [u64; N], least: [i64; N], seed: u64) -> [u64; N] {
    let (budget, rate) = (budget(), Rate::new(percent).unwrap());
    let processes: [Process; N] = std::array::from_fn(|n| Process::new(budget, percent, n as u16 + 1));
    // SAFETY: all zero is an empty batch.
    let mut batches: [Batch; N] = unsafe { std::mem::zeroed() };
    let (mut ends, mut looks, mut wants, mut got) = ([None; N], [0; N], [0; N], [0; N]);
    let (mut random, mut others) = (seed, [false; N]);
    let mut jitter = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if seed == 0 { 0 } else { (random >> 33) % most }
    };
    for now in (S..S + length).step_by(20 * US as usize) {
        for who in 0..N {
            let account = processes[who].meter.account;
            if looks[who] > now {
                continue;
            }
            if ends[who].is_some_and(|end| end <= now) {
                ends[who] = None;
                got[who] += kernels[who];
                account.arrived(&batches[who]);
                budget.charge(kernels[who] as i64, rate);
            }
            batches[who].expected = kernels[who];
            looks[who] = now
                + match account.verdict(now, kernels[who], wants[who], rate) {
                    Verdict::Go | Verdict::Spare if ends[who].is_none() => {
                        account.departed(&batches[who], 0);
                        (ends[who], wants[who]) = (Some(now + kernels[who]), 0);
                        0
                    }
                    Verdict::Wait(time) => {
                        wants[who] = least[who];
                        if ends[who].is_some() { 0 } else { time.clamp(MS / 2, 6 * MS) + jitter(100 * US) }
                    }
                    Verdict::Other => {
                        others[who] = true;
                        900 * US + jitter(100 * US)
                    }
                    _ => 300 * US + jitter(60 * US),
                };
            if account.has_handed() {
                for other in 0..N {
                    if std::mem::take(&mut others[other]) {
                        looks[other] = looks[other].min(now + 20 * US + jitter(40 * US));
                    }
                }
            }
        }
    }
    got
}

/// As many do as ask for the same; whoever waits for more than two others do may be passed over.
#[test]
fn processes_that_want_the_same_get_about_the_same() {
    for percent in [5, 10, 25, 50, 75, 90] {
        for seed in [1, 2, 3] {
            for kernels in [[200 * US; 4], [20 * US; 4], [2 * MS, 200 * US, 200 * US, 200 * US], [5 * MS, 2 * MS, 200 * US, 2 * MS]] {
                let got = shared(percent, kernels, [2 * MS as i64; 4], seed);
                let sum = got.iter().sum::<u64>();
                assert!(got.iter().all(|got| got * 12 > sum), "{percent}% of {kernels:?}, seed {seed}: {got:?}");
            }
        }
    }
}

#[test]
fn no_process_starves_beside_one_that_is_content_with_less() {
    for percent in [5, 10, 25, 50, 90] {
        for (kernels, least) in [([2 * MS; 2], [MS / 2; 2]), ([2 * MS; 2], [2 * MS, 5 * MS]), ([200 * US, 5 * MS], [2 * MS; 2])] {
            let got = shared(percent, kernels, [least[0], least[1]].map(|least| least as i64), 0);
            let sum = got.iter().sum::<u64>() as f64 / 200_000_000.0;
            println!("{percent}%: {got:?} {sum:.1}");
            assert!(got.iter().all(|got| got * 5 > u64::from(percent) * 200 * MS), "{percent}% of {kernels:?} with {least:?}: {got:?}");
            // Whoever yields looks again every 300 us here.
            assert!(sum > f64::from(percent) * 0.85 && sum < f64::from(percent) + 1.5, "{percent}% of {kernels:?}: {sum:.2}");
        }
    }
}

/// Two of 2 ms make one burst, but for three seconds after another process was seen: two processes lose by that (an H200: .73 of .75).
#[test]
fn bursts_are_longer_where_nobody_else_is() {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
    let (stream, budget, start) = (process.stream(0), process.meter.account.budget, gpu.now());
    let launch_until = |end: u64| {
        while gpu.now() < end {
            process.launch(&gpu, stream, 1, 2 * MS);
        }
    };
    launch_until(start + 2 * S);
    let seen_at = gpu.now();
    assert!(budget.let_go(1, seen_at / 1000) && budget.hold(2, seen_at / 1000, (seen_at + 20 * MS) / 1000), "another has a turn");
    launch_until(seen_at + 100 * MS);
    assert!(!budget.is_shared(1, gpu.now() / 1000), "it has gone");
    launch_until(seen_at + 6 * S);
    // The pause after two kernels is 4 ms, and 2 ms after one.
    let without_short_pauses = |from: u64, to: u64| gpu.used_but_for(from, to, 3 * MS) * 100 / (to - from);
    let alone = without_short_pauses(start + S, start + 2 * S);
    let [beside, again] = [(100 * MS, 2 * S), (4 * S, 6 * S)].map(|(from, to)| without_short_pauses(seen_at + from, seen_at + to));
    assert!(alone < 60 && beside > 90 && again < 60, "{alone}%, {beside}% where another was seen, {again}% later");
}

/// Between its turns the other one may be nowhere to be seen.
#[test]
fn who_shared_the_budget_lately_does_so_still() {
    let budget = budget();
    let [first, second] = [1, 2].map(|who| Process::new(budget, 75, who));
    let (first, second) = (first.meter.account, second.meter.account);
    let now = S;
    assert!(!first.was_shared(now), "nobody else was there");
    let rate = Rate::new(75).unwrap();
    assert!(matches!(second.verdict(now, 2 * MS, 0, rate), Verdict::Go), "it has its turn");
    assert!(first.is_shared(now) && first.was_shared(now));
    let later = now + 10 * MS;
    assert!(matches!(first.verdict(later, 2 * MS, 0, rate), Verdict::Go | Verdict::Spare), "the other's is over");
    assert!(!first.is_shared(later), "the other does not wait");
    assert!(first.was_shared(later) && !first.was_shared(later + 3 * S));
}
