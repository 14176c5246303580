//! Records the GPU use of random programs. `scripts/same-limiter.sh` compares the records of two revisions: a change that must not change the
//! limiter's behaviour must not change any line.
//!
//! The programs of a seed are part of the record. A change of the order in which random numbers are drawn here, or in [`Program`], changes all
//! lines.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Budget;
use vgpu_region::limits::Turn;

use crate::engine::{Engine, SUCCESS};
use crate::sim::gpu::Gpu;
use crate::sim::process::{MS, Process, S, US, budget, handle};
use crate::sim::processes::shared_for;
use crate::sim::properties::{Program, Random};
use crate::stream::Stream;
use crate::{batch_close, cost_model, launch};

/// One in this many seeds is run twice when the record is written to a file.
const REPEAT: u64 = 10;

fn describe(gpu: &Gpu, start: u64, charged: u64) -> String {
    let (used, naps, calls) = (gpu.used(start, u64::MAX), gpu.naps.get(), gpu.calls.get());
    let (took, fingerprint) = (gpu.now() - start, gpu.fingerprint());
    format!("used {used} charged {charged} naps {naps} calls {calls} took {took} kernels {fingerprint:016x}")
}

/// Runs a program of the property tests.
fn program(random: &mut Random) -> String {
    let program = Program::any(random);
    let (gpu, charged, deepest) = program.run(random, 1);
    let (start, total) = (charged[0].0, charged[charged.len() - 1].1);
    format!("program {} deepest {deepest}", describe(&gpu, start, total))
}

/// Runs a loop of short kernels whose host is slower than the GPU, and slower still after each nap.
fn host_bound(random: &mut Random) -> String {
    let (gpu, percent) = (Gpu::new(), 5 + random.below(90) as u32);
    let process = Process::new(budget(), percent, 1);
    let (host, kernel, wait_every) = (3 * US + random.below(30 * US), US + random.below(20 * US), 1 + random.below(400));
    let (loses, stream, start) = (random.below(1_200) * US, process.stream(0), gpu.now());
    let mut lost = 0;
    while gpu.now() < start + S {
        for _ in 0..wait_every {
            gpu.pass(host);
            let (before, naps) = (gpu.now(), gpu.naps.get());
            process.launch(&gpu, stream, 1, kernel);
            if gpu.naps.get() != naps {
                lost = loses * (gpu.now() - before).min(30 * MS) / (30 * MS);
            }
            let late = lost.min(host / 2);
            lost -= late;
            gpu.pass(late);
        }
        process.wait(&gpu, stream, true);
    }
    format!("host-bound {}", describe(&gpu, start, process.meter.account.budget.used.load(Relaxed)))
}

/// Runs processes that share a container's budget, without a GPU.
fn shared(random: &mut Random) -> String {
    let kernels = std::array::from_fn::<_, 4, _>(|_| (20 * US) << random.below(9));
    let least = std::array::from_fn(|_| (random.below(5) * MS) as i64);
    let got = shared_for(2 * S, 5 + random.below(90) as u32, kernels, least, random.below(1_000));
    format!("shared {got:?}")
}

/// A container's processes and streams on one GPU. Their threads take random steps, one after the other.
struct World<'a> {
    random: &'a mut Random,
    gpu: Gpu,
    budget: &'static Budget,
    processes: Vec<(Process, Vec<&'static Stream>)>,
    /// Length of each kind of kernel, in nanoseconds.
    lengths: Vec<u64>,
    /// Number of turns so far.
    turns: u32,
    /// Number of kinds so far that are used once.
    new_kinds: u64,
    /// Number of refused launches.
    refused: u64,
}

impl<'a> World<'a> {
    fn any(random: &'a mut Random) -> Self {
        let (gpu, budget) = (Gpu::new(), budget());
        gpu.launch_ns.set(1_500 + random.below(3) * random.below(20 * US));
        gpu.is_exclusive.set(random.below(3) == 0);
        gpu.kernel_watts.set([0, 0, 560, 868][random.below(4) as usize]);
        gpu.others_percent.set([0, 0, 50][random.below(3) as usize]);
        gpu.events_left.set((random.below(8) == 0).then(|| random.below(40) as usize));
        let percent = 5 + random.below(90) as u32;
        let mps = if random.below(8) == 0 { random.below(100) as u32 } else { 0 };
        let (count, many) = ([1, 1, 1, 2, 3][random.below(5) as usize], [1, 2, 4, 16][random.below(4) as usize]);
        let processes = (0..count).map(|number: u64| {
            let process = match mps {
                0 => Process::new(budget, percent, number as u16 + 1),
                _ => Process::with_mps(budget, percent, mps),
            };
            let streams = (0..1 + random.below(many)).map(|stream| process.stream(100 * number + stream)).collect();
            (process, streams)
        });
        let processes = processes.collect();
        let lengths = (0..1 + random.below(6)).map(|_| ((2 * US) << random.below(12)) + random.below(5 * US)).collect();
        Self { random, gpu, budget, processes, lengths, turns: 0, new_kinds: 0, refused: 0 }
    }

    fn launch(&mut self, number: usize, stream: &Stream, kind: u64, length: u64) {
        let (gpu, handle) = (&self.gpu, handle(stream));
        let (loading, blocks) = (if kind >= 1_000 { self.random.below(200 * US) } else { 0 }, kind == 5);
        let call = || {
            gpu.pass(loading);
            gpu.launch(handle, length);
            if blocks {
                gpu.synchronize(handle);
            }
            SUCCESS
        };
        let made = launch::launch(gpu, self.processes[number].0.meter, (stream, handle), cost_model::key(&[kind]), || kind == 3, call);
        self.refused += u64::from(made.is_none());
    }

    fn launch_some(&mut self, number: usize, stream: &Stream) {
        if self.random.below(200) == 0 {
            self.new_kinds += 1;
            let length = self.random.below(2 * MS);
            return self.launch(number, stream, 1_000 + self.new_kinds, length);
        }
        let kind = self.random.below(self.lengths.len() as u64);
        let varies = 50 + self.random.below(100);
        let most = [20, 60, 60, 60, 1_500][self.random.below(5) as usize];
        for _ in 0..1 + self.random.below(most) {
            self.launch(number, stream, kind, self.lengths[kind as usize] * varies / 100);
        }
    }

    /// Gives or takes the turns of all processes, as the arbiter does.
    fn change_turn(&mut self) {
        self.turns += 1;
        let state = [Turn::FREE, Turn::OPEN, Turn::OPEN, Turn::CLOSED][self.random.below(4) as usize];
        let (length, lent) = (self.random.below(20_000) as u32, [0, 0, 50][self.random.below(3) as usize]);
        let (lost_us, opens) = (self.random.below(3) as u32 * 1_000, self.gpu.now() + self.random.below(20 * MS));
        let all_turns = || self.processes.iter().map(|(process, _)| &process.meter.account.turns);
        let turns: Vec<&'static Turn> = all_turns().filter_map(|turns| turns.page.turn_for(turns.uuid)).collect();
        let set = move |turns: &[&Turn], word: u32| {
            for turn in turns {
                turn.length.store(length, Relaxed);
                turn.lent.store(lent, Relaxed);
                turn.lost_us.fetch_add(lost_us, Relaxed);
                turn.word.store(word, Relaxed);
                turn.beat.fetch_add(1, Relaxed);
            }
        };
        set(&turns, 8 * self.turns + state);
        *self.gpu.scheduled.borrow_mut() = Some((
            opens,
            Box::new({
                let word = 8 * self.turns + 4 + Turn::OPEN;
                move || set(&turns, word)
            }),
        ));
    }

    fn step(&mut self, turns: bool) {
        let number = self.random.below(self.processes.len() as u64) as usize;
        let streams = self.processes[number].1.len() as u64;
        let stream = self.processes[number].1[self.random.below(streams) as usize];
        let handle = handle(stream);
        let meter = self.processes[number].0.meter;
        match self.random.below(400) {
            0..20 => self.processes[number].0.wait(&self.gpu, stream, true),
            20..24 => self.processes[number].0.wait(&self.gpu, stream, false),
            24..28 => {
                self.gpu.synchronize(handle);
                batch_close::after_event(&self.gpu, meter);
            }
            28..40 => {
                batch_close::interrupt(&self.gpu, meter, stream, handle);
                self.gpu.copy(handle, self.random.below(200 * US));
            }
            40..44 => self.gpu.pass(self.random.below(10 * MS)),
            44..60 => self.gpu.pass(self.random.below(600 * US)),
            60 => meter.account.set_percent([0, 10, 30, 60, 95][self.random.below(5) as usize]),
            61..63 => batch_close::finish(&self.gpu, meter),
            63..80 if turns => self.change_turn(),
            80 => self.gpu.events_left.set(None),
            _ => self.launch_some(number, stream),
        }
    }
}

/// Runs random steps of several threads. In some runs one kernel takes longer than any wait.
fn mixed(random: &mut Random) -> String {
    let (turns, length) = (random.below(3) == 0, [S, S, 3 * S][random.below(3) as usize]);
    let endless = random.below(16) == 0;
    let mut world = World::any(random);
    let start = world.gpu.now();
    if endless {
        let (_, streams) = &world.processes[0];
        world.launch(0, streams[streams.len() - 1], 999, 60 * S);
    }
    while world.gpu.now() < start + if endless { 40 * S } else { length } {
        world.step(turns);
    }
    let unfinished: u64 = world.processes.iter().map(|(process, _)| process.meter.close(&world.gpu)).sum();
    let charged = world.budget.used.load(Relaxed);
    let waited = world.budget.waited.load(Relaxed);
    let refused = world.refused;
    format!("mixed {} unfinished {unfinished} waited {waited} refused {refused}", describe(&world.gpu, start, charged))
}

fn record(seed: u64) -> String {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    match seed % 8 {
        0..3 => program(&mut random),
        3..6 => mixed(&mut random),
        6 => host_bound(&mut random),
        _ => shared(&mut random),
    }
}

/// Returns the range of seeds in `VGPU_RECORD_SEEDS`, such as `0..50`.
fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("VGPU_RECORD_SEEDS") else { return 0..50 };
    let parsed = range.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("VGPU_RECORD_SEEDS: {range:?}: expected a range such as 0..50"))
}

/// Writes one line for each seed, to the file named by `VGPU_RECORD` if that is set.
#[test]
fn records_what_programs_use() {
    let (path, seeds) = (std::env::var_os("VGPU_RECORD"), seeds());
    assert!(!seeds.is_empty(), "no seeds");
    let mut lines = String::new();
    for seed in seeds {
        let line = record(seed);
        if path.is_none() || seed % REPEAT == 0 {
            assert_eq!(line, record(seed), "seed {seed} is not the same twice");
        }
        writeln!(lines, "{seed} {line}").unwrap();
    }
    match path {
        Some(path) => std::fs::write(path, lines).unwrap(),
        None => print!("{lines}"),
    }
}
