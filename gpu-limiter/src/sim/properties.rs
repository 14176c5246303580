//! What holds for any program, tried on random ones, on a simulated GPU with a deterministic clock. `VGPU_TEST_SEED` repeats a run.

use std::sync::atomic::Ordering::Relaxed;

use crate::admission::CREDIT_OF_SLOW;
use crate::batch_close;
use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::limits::{MS, Process, S, US, budget};
use crate::tuning::GAP;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// What a program does around a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Around {
    WaitsBefore,
    WaitsAfterwards,
    WaitsForOneAfterwards,
    CopiesAfterwards,
    Nothing,
}

/// How long it pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pause {
    /// From the end of its work on: the GPU has nothing to do for so long that it never counts as used.
    AfterWork(u64),
    FromNow(u64),
    /// Until half of what it has launched is done.
    Half,
}

/// A program: kinds of kernels with a length each, by how many percent at most one is longer or shorter than that, streams, how many launches
/// between two pauses, how long these are, and what it does then.
#[derive(Debug)]
pub struct Program {
    percent: u32,
    lengths: Vec<u64>,
    varies: u64,
    streams: u64,
    launches: u64,
    pause: Pause,
    around: Around,
}

impl Program {
    pub fn any(random: &mut Random) -> Self {
        // From 10 µs to 10 ms, short ones as likely as long ones.
        let length = |random: &mut Random| ((10 * US) << random.below(10)) + random.below(10 * US);
        let lengths = (0..1 + random.below(6)).map(|_| length(random)).collect();
        Self {
            percent: 5 + random.below(90) as u32,
            lengths,
            varies: [0, 10, 50][random.below(3) as usize],
            streams: 1 + random.below(3),
            launches: [20, 200, u64::MAX][random.below(3) as usize],
            pause: {
                let length = 2 * MS + random.below(20 * MS);
                [Pause::AfterWork(length), Pause::FromNow(length), Pause::Half][random.below(3) as usize]
            },
            around: [
                Around::WaitsBefore,
                Around::WaitsAfterwards,
                Around::WaitsForOneAfterwards,
                Around::CopiesAfterwards,
                Around::Nothing,
            ][random.below(5) as usize],
        }
    }

    /// Runs it for some seconds. What was charged at which time, and the deepest debt, in nanoseconds.
    pub fn run(&self, random: &mut Random, seconds: u64) -> (Gpu, Vec<(u64, u64)>, i64) {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), self.percent, 1));
        let streams: Vec<_> = (0..self.streams).map(|number| process.stream(number)).collect();
        let (start, account) = (gpu.now(), process.meter.account);
        let (mut charged, mut deepest, mut count) = (vec![(start, 0)], 0, 0);
        while gpu.now() < start + seconds * S {
            let kind = random.below(self.lengths.len() as u64);
            let stream = streams[(count % self.streams) as usize];
            let length = self.lengths[kind as usize] * (100 - self.varies + random.below(2 * self.varies + 1)) / 100;
            process.launch(&gpu, stream, 1 + kind, length);
            count += 1;
            if count % self.launches == 0 {
                if self.around == Around::WaitsBefore {
                    streams.iter().for_each(|stream| process.wait(&gpu, stream, true));
                }
                let all_done = streams.iter().map(|stream| gpu.free(gpu::stream(stream.id.load(Relaxed) as usize))).max();
                let left = all_done.unwrap_or(0).saturating_sub(gpu.now());
                gpu.pass(match self.pause {
                    Pause::AfterWork(length) => left + length,
                    Pause::FromNow(length) => length,
                    Pause::Half => left / 2,
                });
                match self.around {
                    Around::WaitsAfterwards => streams.iter().for_each(|stream| process.wait(&gpu, stream, true)),
                    Around::WaitsForOneAfterwards => process.wait(&gpu, streams[0], true),
                    Around::CopiesAfterwards => {
                        batch_close::interrupt(&gpu, process.meter, streams[0], gpu::stream(1));
                        gpu.copy(gpu::stream(1), 100 * US);
                    }
                    Around::WaitsBefore | Around::Nothing => {}
                }
            }
            charged.push((gpu.now(), account.budget.used.load(Relaxed)));
            deepest = deepest.min(account.budget.balance(gpu.now(), account.rate().unwrap()));
        }
        (gpu, charged, deepest)
    }
}

fn seed() -> u64 {
    let seed = std::env::var("VGPU_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("VGPU_TEST_SEED={seed}");
    seed
}

/// Kinds that cannot be told apart by what their batches took, in streams side by side: all of the share is had all the same.
#[test]
fn mixed_kinds_in_several_streams_get_their_share() {
    let mut random = Random(seed());
    for percent in [25, 50, 74, 90] {
        for streams in [1, 2, 3] {
            let program = Program {
                percent,
                lengths: vec![16 * US, 50 * US, 7 * US],
                varies: 0,
                streams,
                launches: u64::MAX,
                pause: Pause::Half,
                around: Around::Nothing,
            };
            let (gpu, charged, _) = program.run(&mut random, 3);
            let used = gpu.used(charged[0].0 + S, charged[0].0 + 3 * S) as f64 / 2e7;
            assert!((used - f64::from(percent)).abs() < 1.5, "{program:?}: {used:.2}");
        }
    }
}

#[test]
fn what_is_charged_is_what_was_used_and_debt_is_bounded() {
    let mut random = Random(seed());
    for _ in 0..80 {
        let program = Program::any(&mut random);
        let (gpu, charged, deepest) = program.run(&mut random, 4);
        let longest = program.lengths.iter().max().unwrap() * (100 + program.varies) / 100;
        let start = charged[0].0;
        // A charge comes when a launch finds the work finished, so each end of a second may be late by a burst or the longest kernel.
        let late = 10 * MS + longest;
        // What nobody saw the end of counts as expected: kinds that come together are not told apart, nor what streams side by side take.
        let guessed = match program.around {
            Around::WaitsBefore => 0,
            _ if program.streams == 1 => 10,
            _ => 45,
        };
        // Pauses that are too short for others count as used, and how long one is goes by when the work is expected to end.
        let rests = program.launches == u64::MAX || matches!(program.pause, Pause::AfterWork(_));
        let short = if rests { 0 } else { GAP + program.launches.min(200) * longest * guessed / 100 };
        let check = |told: u64, from: u64, to: u64, part: u64| {
            let (used, most) = (gpu.used(from, to), gpu.used_but_for(from, to, short));
            let off = part + late + used * guessed / 100;
            assert!(
                told + off > used && told < most + off,
                "{program:?}: charged {told} of {used} to {most}, from {} ms",
                (from - start) / MS
            );
        };
        for first in (0..charged.len()).step_by(charged.len() / 20 + 1) {
            let Some(last) = charged.iter().position(|(when, _)| *when >= charged[first].0 + S) else { break };
            let ((from, before), (to, after)) = (charged[first], charged[last]);
            check(after - before, from, to, (to - from) / 100);
        }
        // Over the whole run the ends do not matter.
        let (end, told) = *charged.last().unwrap();
        check(told, start, end, gpu.used(start, end) / 100);
        // Two launches of unknown cost in each stream, or a burst that turned out longer than it looked; a host that keeps the GPU waiting has
        // credit.
        let credit = if rests { 0 } else { CREDIT_OF_SLOW as u64 };
        let most = 10 * MS + 3 * longest * program.streams + credit;
        assert!(-deepest < most as i64, "{program:?}: a debt of {deepest}, at most {most}");
        // Nothing runs away: no more than the limit and what was saved.
        let all = gpu.used(start + S, start + 4 * S);
        let limit = 3 * S / 100 * u64::from(program.percent);
        assert!(all < limit + limit / 50 + late + most, "{program:?}: used {all}, the limit is {limit}");
        assert!(gpu.naps.get() < 4 * 2_500, "{program:?}: {} naps", gpu.naps.get());
    }
}
