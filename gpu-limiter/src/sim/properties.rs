//! Properties that hold for any program, tried on random ones.
//!
//! The seed is fixed. `VGPU_TEST_SEED` sets another one; `VGPU_TEST_SEED=random` takes one from the clock (`make test-random`).

use std::sync::atomic::Ordering::Relaxed;

use crate::batch_close;
use crate::engine::Engine;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget, handle};
use crate::tuning::{MAX_SAVED_NS, MIN_PAUSE_NS};

/// Seed if `VGPU_TEST_SEED` is not set.
const DEFAULT_SEED: u64 = 20_260_101;

/// A linear congruential generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Calls of a program before and after a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Around {
    WaitsBefore,
    WaitsAfterwards,
    WaitsForOneAfterwards,
    CopiesAfterwards,
    Nothing,
}

/// Length of a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pause {
    /// From the end of the work. The GPU idles for so long that the pause never counts as used. In nanoseconds.
    AfterWork(u64),
    /// From the last launch, in nanoseconds.
    FromNow(u64),
    /// Until half of the launched work is done.
    Half,
}

/// A program.
#[derive(Debug)]
pub struct Program {
    /// Its limit.
    percent: u32,
    /// Length of each kind of kernel, in nanoseconds.
    lengths: Vec<u64>,
    /// Largest deviation of a kernel from its kind's length, in percent.
    varies: u64,
    streams: u64,
    /// Number of launches between two pauses.
    launches: u64,
    pause: Pause,
    around: Around,
}

impl Program {
    pub fn any(random: &mut Random) -> Self {
        // From 10 µs to 10 ms, evenly on a logarithmic scale.
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

    /// Runs the program. Returns the total charge after each launch with its time, and the deepest debt, in nanoseconds.
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
                let all_done = streams.iter().map(|stream| gpu.free_at(handle(stream))).max();
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
            deepest = deepest.min(account.budget.balance(gpu.now(), account.rate().unwrap(), MAX_SAVED_NS));
        }
        (gpu, charged, deepest)
    }
}

fn seed() -> u64 {
    let seed = match std::env::var("VGPU_TEST_SEED").as_deref() {
        Err(_) => DEFAULT_SEED,
        Ok("random") => std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("VGPU_TEST_SEED: {seed:?}: expected a number or \"random\"")),
    };
    println!("VGPU_TEST_SEED={seed}");
    seed
}

/// Kinds whose costs cannot be distinguished by their batches, in concurrent streams, still get the whole share.
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
fn charges_match_use_and_debt_is_bounded() {
    let mut random = Random(seed());
    for _ in 0..80 {
        let program = Program::any(&mut random);
        let (gpu, charged, deepest) = program.run(&mut random, 4);
        let longest = program.lengths.iter().max().unwrap() * (100 + program.varies) / 100;
        let start = charged[0].0;
        // Work is charged when a launch finds it finished, so each end of a second may be late by a burst or the longest kernel.
        let late = 10 * MS + longest;
        // A batch with a guessed end is charged as expected. Costs of kinds that come together, or in concurrent streams, are inexact.
        let guessed = match program.around {
            Around::WaitsBefore => 0,
            _ if program.streams == 1 => 10,
            _ => 45,
        };
        // Short pauses count as used, and the length of a pause depends on the expected end of the work before it.
        let rests = program.launches == u64::MAX || matches!(program.pause, Pause::AfterWork(_));
        let short = if rests { 0 } else { MIN_PAUSE_NS + program.launches.min(200) * longest * guessed / 100 };
        let check = |charged_ns: u64, from: u64, to: u64, part: u64| {
            let (used, most) = (gpu.used(from, to), gpu.used_with_pauses(from, to, short));
            let off = part + late + used * guessed / 100;
            assert!(
                charged_ns + off > used && charged_ns < most + off,
                "{program:?}: charged {charged_ns} of {used} to {most}, from {} ms",
                (from - start) / MS
            );
        };
        for first in (0..charged.len()).step_by(charged.len() / 20 + 1) {
            let Some(last) = charged.iter().position(|(when, _)| *when >= charged[first].0 + S) else { break };
            let ((from, before), (to, after)) = (charged[first], charged[last]);
            check(after - before, from, to, (to - from) / 100);
        }
        // The ends do not matter for the whole run.
        let (end, charged_ns) = *charged.last().unwrap();
        check(charged_ns, start, end, gpu.used(start, end) / 100);
        // Two launches of unknown cost in each stream, or a burst that took longer than expected.
        let most = 10 * MS + 3 * longest * program.streams;
        assert!(-deepest < most as i64, "{program:?}: a debt of {deepest}, at most {most}");
        // Use is bounded by the limit and the savings.
        let all = gpu.used(start + S, start + 4 * S);
        let limit = 3 * S / 100 * u64::from(program.percent);
        assert!(all < limit + limit / 50 + late + most, "{program:?}: used {all}, the limit is {limit}");
        assert!(gpu.naps.get() < 4 * 2_500, "{program:?}: {} naps", gpu.naps.get());
    }
}
