//! A share of a GPU for processes outside a container: a folder with limits and accounts.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::map::{self, Census};
use vgpu_region::region::Region;

use crate::random::Random;

/// Time between two beats of an arbiter's heart.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// The folder, which is removed on drop.
pub struct Share(TempDir);

impl Share {
    /// Creates a share with `memory` bytes of each GPU and without a limit of GPU time.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn make(memory: u64) -> Result<Share, String> {
        let limit = GpuLimit::new(Selector::All);
        limit.memory.store(memory, Relaxed);
        Share::with([limit])
    }

    /// As [`Share::make`], with memory that moves to the host when it is told to ([`Orders`]).
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn evictable(memory: u64) -> Result<Share, String> {
        let limit = GpuLimit::new(Selector::All);
        limit.memory.store(memory, Relaxed);
        limit.overcommit.store(GpuLimit::EVICTABLE, Relaxed);
        Share::with([limit])
    }

    /// Creates a share with these limits.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn with(limits: impl IntoIterator<Item = GpuLimit>) -> Result<Share, String> {
        let folder = TempDir::with_prefix("vgpu-share-").map_err(|error| error.to_string())?;
        std::fs::write(folder.path().join("limits"), LimitsPage::new(limits).as_bytes()).map_err(|error| error.to_string())?;
        let region = std::fs::File::create(folder.path().join("region")).map_err(|error| error.to_string())?;
        map::format(region.as_raw_fd()).map_err(|error| error.to_string())?;
        Ok(Share(folder))
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Runs a program under this share by preloading a library.
    pub fn limits<'a>(&self, library: &str, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_PRELOAD", library).env("VGPU_DIR", self.folder())
    }

    /// Reads the accounts of the GPU with the most memory in use: these programs use one GPU.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn ledger(&self) -> Result<Ledger, String> {
        let path =
            std::ffi::CString::new(self.folder().join("region").to_string_lossy().into_owned()).map_err(|error| error.to_string())?;
        let region = map::region(&path).map_err(|error| error.to_string())?;
        let census = Census::open(&path);
        let used = |place: &usize| (region.gpus[*place].total.bytes(), region.gpus[*place].refused.load(Relaxed));
        let place = (0..region.gpus.len()).rev().max_by_key(used).unwrap_or(0);
        let account = &region.gpus[place];
        let living = region.used_slots().filter(|&(index, _)| !census.is_dead(index));
        let bytes = |pages: u32| u64::from(pages) * vgpu_region::ledger::PAGE;
        let processes = living.map(|(_, slot)| {
            let account = &slot.gpus[place];
            Held {
                pid: slot.pid.load(Relaxed),
                bytes: bytes(account.charge.held()),
                managed: bytes(account.managed.load(Relaxed)),
                overhead: bytes(account.overhead.load(Relaxed)),
                out: bytes(account.out.load(Relaxed)),
                in_flight: account.charge.in_flight(),
            }
        });
        let (total, spilled, refused) = (account.total.bytes(), account.spilled.bytes(), account.refused.load(Relaxed));
        let ledger = Ledger { total, spilled, refused, processes: processes.collect() };
        // SAFETY: the mapping is not used below.
        unsafe { map::unmap(region) };
        Ok(ledger)
    }
}

impl Share {
    /// Returns the GPU time charged so far on all GPUs, in nanoseconds.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn gpu_time(&self) -> Result<u64, String> {
        let path =
            std::ffi::CString::new(self.folder().join("region").to_string_lossy().into_owned()).map_err(|error| error.to_string())?;
        let region = map::region(&path).map_err(|error| error.to_string())?;
        let time = region.gpus.iter().map(|account| account.budget.used.load(Relaxed)).sum();
        // SAFETY: the mapping is not used below.
        unsafe { map::unmap(region) };
        Ok(time)
    }
}

/// The files of a share, mapped until this process ends.
pub struct Pages {
    limits: &'static LimitsPage,
    region: &'static Region,
    census: Census,
}

impl Pages {
    /// Maps the files.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn map(share: &Share) -> Result<Pages, String> {
        let path = |name: &str| std::ffi::CString::new(share.folder().join(name).to_string_lossy().into_owned()).map_err(|e| e.to_string());
        let limits = map::limits_for_change(&path("limits")?).map_err(|error| error.to_string())?;
        let region = map::region(&path("region")?).map_err(|error| error.to_string())?;
        Ok(Pages { limits, region, census: Census::open(&path("region")?) })
    }

    /// Returns how far a living process is; `None` if it has no slot.
    #[must_use]
    pub fn progress(&self, pid: u32) -> Option<Progress> {
        let (_, slot) = map::living(self.region, &self.census).find(|(_, slot)| slot.pid.load(Relaxed) == pid)?;
        let followed = slot.left.load(Relaxed);
        // Only who gives orders makes a place for a turn.
        let mut turns = self.region.gpus.iter().filter_map(|account| self.limits.turn(account.uuid()?));
        let is_pending = |turn: &Turn| ![0, followed].contains(&turn.leave.load(Relaxed));
        let out: u64 = slot.gpus.iter().map(|charge| u64::from(charge.out.load(Relaxed))).sum();
        Some(Progress { calls: slot.calls.load(Relaxed), is_ordered: turns.any(is_pending), out: out * vgpu_region::ledger::PAGE })
    }

    /// Returns the turn on each GPU that processes of the share use, for who gives orders.
    fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.region.gpus.iter().filter_map(|account| self.limits.turn_for(account.uuid()?))
    }
}

/// How far a process is with orders to move its memory to the host.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Number of its calls that needed device memory, modulo 2³².
    pub calls: u32,
    /// Whether an order stands that it has not followed.
    pub is_ordered: bool,
    /// Its memory on the host, in bytes; memory on its way back counts, memory on its way out does not.
    pub out: u64,
}

/// A thread that tells the processes of a share to move their memory to the host, again and again, as an arbiter does. Each call that needs
/// memory brings it back.
pub struct Orders {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Moves>,
}

/// Moves to the host that processes have made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    /// Their number.
    pub count: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Time from the orders until the memory was out.
    pub took: Duration,
}

impl Orders {
    /// Starts the thread. Pauses between two orders are up to `pause`, at random.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn start(share: &Share, pause: Duration, seed: u64) -> Result<Self, String> {
        let Pages { limits, region, .. } = Pages::map(share)?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || give(limits, region, pause, &is_over, &mut Random::new(seed)));
        Ok(Self { stop, thread })
    }

    /// Gives an order of an arbiter that is killed: nobody takes it back, and no heart beats.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn abandon(share: &Share) -> Result<(), String> {
        for_each_turn(share, |limits, turn, region| {
            turn.beat.fetch_add(1, Relaxed);
            turn.leave.store(last_order(region) + 1, Relaxed);
            limits.notify_turn(turn);
        })
    }

    /// Asks the processes to copy their memory to the host while they are idle, as a living arbiter does.
    ///
    /// # Errors
    /// A message that says what failed.
    pub fn let_copy_ahead(share: &Share) -> Result<(), String> {
        for_each_turn(share, |limits, turn, _| {
            turn.beat.fetch_add(1, Relaxed);
            turn.stand_by.store(Turn::COPY_AHEAD, Relaxed);
            limits.notify_turn(turn);
        })
    }

    /// Stops the thread, and returns the moves that processes have made.
    ///
    /// # Panics
    /// If the thread panicked.
    #[must_use]
    pub fn end(self) -> Moves {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the thread does not panic")
    }
}

/// Calls `change` with the turn on each GPU that processes of the share use, its page, and the region.
fn for_each_turn(share: &Share, change: impl Fn(&LimitsPage, &Turn, &Region)) -> Result<(), String> {
    let pages = Pages::map(share)?;
    pages.turns().for_each(|turn| change(pages.limits, turn, pages.region));
    // SAFETY: the mapping is not used below.
    unsafe { map::unmap(pages.region) };
    Ok(())
}

/// Returns the last order that a process has followed: they follow only newer ones.
fn last_order(region: &Region) -> u32 {
    region.used_slots().map(|(_, slot)| slot.left.load(Relaxed)).max().unwrap_or(0)
}

/// Gives orders until `stop` is set. Returns the moves of all processes.
fn give(limits: &LimitsPage, region: &Region, pause: Duration, stop: &AtomicBool, random: &mut Random) -> Moves {
    let mut moves = Moves::default();
    let mut order = last_order(region);
    // Large blocks, which are moved with long pauses, take long.
    let patience = (pause * 20).max(Duration::from_millis(200));
    while !stop.load(Relaxed) {
        for account in region.gpus.iter().filter(|account| account.uuid().is_some()) {
            let Some(turn) = account.uuid().and_then(|uuid| limits.turn_for(uuid)) else { continue };
            order += 1;
            turn.beat.fetch_add(1, Relaxed);
            // A program that rests copies its memory ahead, before the order or until it comes.
            turn.stand_by.store(Turn::COPY_AHEAD, Relaxed);
            turn.no_room.store(account.room_wanted.load(Relaxed), Relaxed);
            turn.leave.store(order, Relaxed);
            limits.notify_turn(turn);
            let pages_out = || region.used_slots().flat_map(|(_, slot)| &slot.gpus).map(|charge| u64::from(charge.out.load(Relaxed)));
            let begun = Instant::now();
            let wait = |until: &dyn Fn() -> bool| {
                let begun = Instant::now();
                while !until() && begun.elapsed() < patience && !stop.load(Relaxed) {
                    turn.beat.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_micros(100));
                }
            };
            wait(&|| pages_out().any(|pages| pages != 0));
            let count = pages_out().filter(|pages| *pages != 0).count() as u64;
            if count != 0 {
                moves.count += count;
                moves.bytes += pages_out().sum::<u64>() * vgpu_region::ledger::PAGE;
                moves.took += begun.elapsed();
            }
            turn.leave.store(0, Relaxed);
            limits.notify_turn(turn);
            wait(&|| pages_out().all(|pages| pages == 0));
        }
        let (begun, pause) = (Instant::now(), pause.mul_f64(random.below(1000) as f64 / 1000.0));
        while let Some(left) = pause.checked_sub(begun.elapsed()) {
            let turns = region.gpus.iter().filter_map(|account| limits.turn_for(account.uuid()?));
            turns.for_each(|turn| _ = turn.beat.fetch_add(1, Relaxed));
            std::thread::sleep(left.min(HEARTBEAT));
        }
    }
    moves
}

/// Accounts of one GPU, in bytes.
#[derive(Debug)]
pub struct Ledger {
    /// Device memory of all processes.
    pub total: u64,
    /// Memory of all processes that was spilled to the host.
    pub spilled: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// The living processes.
    pub processes: Vec<Held>,
}

/// The account of one process, in bytes.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The process.
    pub pid: u32,
    /// All its device memory.
    pub bytes: u64,
    /// The part of `bytes` that NVML does not list per process.
    pub managed: u64,
    /// The part of `bytes` that no allocation call asked for.
    pub overhead: u64,
    /// The part of `bytes` that was moved to the host.
    pub out: u64,
    /// Whether a call is in progress.
    pub in_flight: bool,
}
