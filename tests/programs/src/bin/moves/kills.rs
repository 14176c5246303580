//! Processes, and their arbiters, that are killed in the middle of a move, beside a process that must not notice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use vgpu_test_programs::arguments::Arguments;
use vgpu_test_programs::nvml::Nvml;
use vgpu_test_programs::random::Random;
use vgpu_test_programs::share::{Orders, Pages, Progress, Share};

use crate::process::Process;

/// Number of rounds of which one is the arbiter's death.
const ARBITER_EVERY: u64 = 4;
/// Most time for which a process works before the first order, in microseconds.
const MOST_WORK_US: u64 = 50_000;
/// Most time between the first order, or the first move, and a death, in microseconds.
const MOST_ORDERS_US: u64 = 60_000;
/// Most time between an order and a death that is to be in the middle of the move, in microseconds.
const MOST_MOVE_US: u64 = 20_000;
/// Longest pause between two orders to a process that will be killed.
const PAUSE: Duration = Duration::from_millis(1);
/// Time for which a process's first move is waited for. Host memory is made before.
const FIRST_MOVE: Duration = Duration::from_secs(2);
/// Time for which the next order is waited for. None comes while memory is on its way back.
const NEXT_ORDER: Duration = Duration::from_millis(500);
/// Time after which processes take an arbiter whose heart does not beat for dead, with some reserve.
const ARBITER_DEAD: Duration = Duration::from_millis(1200);
/// Most time until a process goes on whose arbiter is dead.
const GO_ON: Duration = Duration::from_secs(30);
/// Most time until the driver has given back the memory of ended processes.
const GIVE_BACK: Duration = Duration::from_secs(10);
/// Time between two looks at the witness.
const WATCH: Duration = Duration::from_millis(50);
/// Difference of the GPU's used memory that is no leak, in bytes.
const SLACK: u64 = 16 << 20;

/// What happened so far.
#[derive(Default)]
struct Tally {
    /// Number of processes that were killed.
    kills: AtomicU64,
    /// Those that had not followed an order then: they prepared to leave, or their memory was on its way out.
    pending: AtomicU64,
    /// Those whose memory was out or on its way back.
    out: AtomicU64,
    /// Number of arbiters that died.
    arbiter_deaths: AtomicU64,
    /// Moves of all these processes.
    moves: AtomicU64,
}

/// The rounds: their seeds, and the next one.
struct Rounds {
    seed: u64,
    count: u64,
    next: AtomicU64,
}

impl Rounds {
    /// Takes the next round, or returns `None` after the last one.
    fn take(&self) -> Option<u64> {
        let round = self.next.fetch_add(1, Relaxed);
        (round < self.count).then_some(round)
    }

    /// Gives no more rounds.
    fn stop(&self) {
        self.next.store(self.count, Relaxed);
    }

    /// Returns the seed of a process: 0 is the witness, and the last one in each share.
    fn seed(&self, number: u64) -> u64 {
        self.seed.wrapping_mul(1000).wrapping_add(number)
    }
}

/// Kills processes and arbiters beside a witness. Returns a line of JSON.
pub fn run(arguments: &Arguments, seed: u64) -> Result<String, String> {
    let nvml = Nvml::open(arguments.number("gpu", 0) as u32)?;
    let used_before = used(&nvml)?;
    let (rounds, tally) = (Rounds { seed, count: arguments.number("kills", 0), next: AtomicU64::new(0) }, Tally::default());
    let begun = Instant::now();
    let share = make_share(arguments)?;
    let mut witness = Process::start(arguments, &share, rounds.seed(0))?;
    let orders = Orders::start(&share, Duration::from_micros(arguments.number("pause", 2000)), seed)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.number("victims", 3)).map(|_| scope.spawn(|| victims(arguments, &rounds, &tally))).collect();
        let watched = watch(&mut witness, || threads.iter().all(ScopedJoinHandle::is_finished));
        rounds.stop();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).fold(watched, Result::and)
    })?;
    let moves = orders.end().count;
    let said = witness.end_without_arbiter().map_err(|error| format!("the witness: {error}"))?;
    if moves == 0 {
        return Err("the witness's memory never moved".to_owned());
    }
    check_folder(&share)?;
    check_used(&nvml, used_before)?;
    let count = |count: &AtomicU64| count.load(Relaxed);
    Ok(format!(
        "{{\"seed\":{seed},\"kills\":{},\"pending\":{},\"out\":{},\"arbiter_deaths\":{},\"victims_moves\":{},\"witness_moves\":{moves},{said},\
         \"seconds\":{:.1}}}",
        count(&tally.kills),
        count(&tally.pending),
        count(&tally.out),
        count(&tally.arbiter_deaths),
        count(&tally.moves),
        begun.elapsed().as_secs_f64()
    ))
}

/// Waits until `is_over`. Returns an error as soon as the witness has ended.
fn watch(witness: &mut Process, is_over: impl Fn() -> bool) -> Result<(), String> {
    while !is_over() {
        std::thread::sleep(WATCH);
        witness.check_runs().map_err(|error| format!("the witness: {error}"))?;
    }
    Ok(())
}

/// Makes a share whose memory moves.
fn make_share(arguments: &Arguments) -> Result<Share, String> {
    Share::evictable(arguments.number("limit", 2 << 30))
}

/// Takes rounds in a share of its own, and lets a last process find its account right.
fn victims(arguments: &Arguments, rounds: &Rounds, tally: &Tally) -> Result<(), String> {
    let result = all_rounds(arguments, rounds, tally);
    if result.is_err() {
        rounds.stop();
    }
    result
}

/// See [`victims`].
fn all_rounds(arguments: &Arguments, rounds: &Rounds, tally: &Tally) -> Result<(), String> {
    let share = make_share(arguments)?;
    let pages = Pages::map(&share)?;
    while let Some(round) = rounds.take() {
        let victim = Process::start(arguments, &share, rounds.seed(round + 1)).map_err(|error| format!("round {round}: {error}"))?;
        one_round(victim, &share, &pages, round, rounds.seed(round + 1), tally).map_err(|error| format!("round {round}: {error}"))?;
    }
    let last = Process::start(arguments, &share, rounds.seed(0))?;
    last.end().map_err(|error| format!("after the last round: {error}"))?;
    check_folder(&share)
}

/// Gives a process orders until it or its arbiter is killed.
fn one_round(victim: Process, share: &Share, pages: &Pages, round: u64, seed: u64, tally: &Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    std::thread::sleep(Duration::from_micros(random.below(MOST_WORK_US)));
    let orders = Orders::start(share, PAUSE, seed)?;
    wait_for_moment(&victim, pages, &mut random);
    if round % ARBITER_EVERY == ARBITER_EVERY - 1 {
        tally.moves.fetch_add(orders.end().count, Relaxed);
        tally.arbiter_deaths.fetch_add(1, Relaxed);
        return lose_arbiter(victim, share, pages);
    }
    let last = pages.progress(victim.id());
    victim.kill()?;
    tally.moves.fetch_add(orders.end().count, Relaxed);
    tally.kills.fetch_add(1, Relaxed);
    tally.pending.fetch_add(last.is_some_and(|last| last.is_ordered).into(), Relaxed);
    tally.out.fetch_add(last.is_some_and(|last| last.out != 0).into(), Relaxed);
    Ok(())
}

/// Waits for a moment at which a process or its arbiter dies. Half of them are before the first move, for which host memory is made, or soon
/// after it; the others are in the middle of a later one.
fn wait_for_moment(victim: &Process, pages: &Pages, random: &mut Random) {
    let is_later = random.below(2) == 0;
    if is_later {
        wait_until(pages, victim, FIRST_MOVE, |now| now.out != 0);
    }
    std::thread::sleep(Duration::from_micros(random.below(MOST_ORDERS_US)));
    if is_later {
        wait_until(pages, victim, NEXT_ORDER, |now| now.is_ordered);
        std::thread::sleep(Duration::from_micros(random.below(MOST_MOVE_US)));
    }
}

/// Lets the arbiter of a process die after an order. The process has to go on, and to end as ever.
fn lose_arbiter(victim: Process, share: &Share, pages: &Pages) -> Result<(), String> {
    Orders::abandon(share)?;
    std::thread::sleep(ARBITER_DEAD);
    let calls = pages.progress(victim.id()).ok_or("the process has no slot")?.calls;
    if !wait_until(pages, &victim, GO_ON, |now| now.calls != calls) {
        return Err(format!("the process does not go on {GO_ON:?} after its arbiter's death: {:?}", pages.progress(victim.id())));
    }
    victim.end().map(|_| ())
}

/// Waits until a process is as `wanted`, up to `most`. Returns whether it is.
fn wait_until(pages: &Pages, process: &Process, most: Duration, wanted: impl Fn(Progress) -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if pages.progress(process.id()).is_some_and(&wanted) {
            return true;
        }
        if begun.elapsed() > most {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns an error if processes have left files in the share's folder.
fn check_folder(share: &Share) -> Result<(), String> {
    let entries = std::fs::read_dir(share.folder()).map_err(|error| error.to_string())?;
    let names: BTreeSet<_> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if names.iter().eq(["limits", "region"]) { Ok(()) } else { Err(format!("files in the share's folder: {names:?}")) }
}

/// Returns the used memory of the GPU in bytes.
fn used(nvml: &Nvml) -> Result<u64, String> {
    nvml.memory().map(|(_, used)| used).ok_or_else(|| "NVML does not tell the used memory".to_owned())
}

/// Returns an error if the GPU's used memory is not what it was before, although all processes have ended.
fn check_used(nvml: &Nvml, before: u64) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let now = used(nvml)?;
        if now.abs_diff(before) <= SLACK {
            return Ok(());
        }
        if begun.elapsed() > GIVE_BACK {
            return Err(format!("{now} bytes of the GPU are used after all processes have ended, {before} before the first one"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
