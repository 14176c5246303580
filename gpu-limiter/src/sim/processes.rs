//! Processes that share a container's budget.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Rate;

use crate::account::Admission;
use crate::batch::Batch;
use crate::sim::process::{MS, Process, S, US, budget};

/// Returns the GPU time that each process of a container gets in 20 s. Each runs one kernel after the other; after a wait it needs a balance
/// of `least` nanoseconds.
fn shared<const N: usize>(percent: u32, kernels: [u64; N], least: [i64; N], seed: u64) -> [u64; N] {
    shared_for(20 * S, percent, kernels, least, seed)
}

/// Returns the same for a run of `length` nanoseconds.
pub fn shared_for<const N: usize>(length: u64, percent: u32, kernels: [u64; N], least: [i64; N], seed: u64) -> [u64; N] {
    let (budget, rate) = (budget(), Rate::new(percent).unwrap());
    let processes: [Process; N] = std::array::from_fn(|n| Process::new(budget, percent, n as u16 + 1));
    // SAFETY: an all-zero batch is empty and valid.
    let mut batches: [Batch; N] = unsafe { std::mem::zeroed() };
    let (mut ends, mut looks, mut wants, mut got) = ([None; N], [0; N], [0; N], [0; N]);
    let (mut random, mut others) = (seed, [false; N]);
    let mut jitter = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if seed == 0 { 0 } else { (random >> 33) % most }
    };
    for now in (S..S + length).step_by(20 * US as usize) {
        for process in 0..N {
            let account = processes[process].meter.account;
            if looks[process] > now {
                continue;
            }
            if ends[process].is_some_and(|end| end <= now) {
                ends[process] = None;
                got[process] += kernels[process];
                account.remove_in_flight(&batches[process]);
                budget.charge(kernels[process] as i64, rate);
            }
            batches[process].expected_ns = kernels[process];
            looks[process] = now
                + match account.admit(now, kernels[process], wants[process], rate) {
                    Admission::Granted if ends[process].is_none() => {
                        account.add_in_flight(&batches[process]);
                        (ends[process], wants[process]) = (Some(now + kernels[process]), 0);
                        0
                    }
                    Admission::OverBudget(time) => {
                        wants[process] = least[process];
                        if ends[process].is_some() { 0 } else { time.clamp(MS / 2, 6 * MS) + jitter(100 * US) }
                    }
                    Admission::LeasedByOther => {
                        others[process] = true;
                        900 * US + jitter(100 * US)
                    }
                    _ => 300 * US + jitter(60 * US),
                };
            if account.take_lease_end() {
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

/// Processes that need the same balance. One that needs more than two others may be passed over.
#[test]
fn processes_with_equal_bursts_get_about_the_same() {
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
fn no_process_starves_because_another_has_shorter_bursts() {
    for percent in [5, 10, 25, 50, 90] {
        for (kernels, least) in [([2 * MS; 2], [MS / 2; 2]), ([2 * MS; 2], [2 * MS, 5 * MS]), ([200 * US, 5 * MS], [2 * MS; 2])] {
            let got = shared(percent, kernels, [least[0], least[1]].map(|least| least as i64), 0);
            let sum = got.iter().sum::<u64>() as f64 / 200_000_000.0;
            println!("{percent}%: {got:?} {sum:.1}");
            assert!(got.iter().all(|got| got * 5 > u64::from(percent) * 200 * MS), "{percent}% of {kernels:?} with {least:?}: {got:?}");
            // A process that yields looks again every 300 us here.
            assert!(sum > f64::from(percent) * 0.85 && sum < f64::from(percent) + 1.5, "{percent}% of {kernels:?}: {sum:.2}");
        }
    }
}

/// The arbiter sees that a first launch waits, and nothing that was not so: no work in flight, no turn that was applied or is wanted.
#[test]
fn a_first_launch_that_waits_for_the_arbiter_says_so() {
    let (budget, rate) = (budget(), Rate::new(50).unwrap());
    let account = Process::new(budget, 50, 1).meter.account;
    let turn = account.turns.page.turn_for(account.turns.uuid).unwrap();
    turn.word.store(8, Relaxed);
    let admissions: Vec<Admission> = (7..11)
        .map(|beat| {
            turn.beat.store(beat, Relaxed);
            account.admit(u64::from(beat) * 10 * MS, 200 * US, -1, rate)
        })
        .collect();
    assert_eq!(admissions, [Admission::TurnClosed, Admission::TurnClosed, Admission::TurnClosed, Admission::Granted]);
    let counters = [&budget.activity, &budget.ahead, &budget.drained, &budget.want];
    assert_eq!(counters.map(|counter| counter.load(Relaxed)), [3, 0, 0, 0]);
}
