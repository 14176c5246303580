//! Programs under a limit on the simulated GPU, and measures of what they get.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_region::budget::Budget;
use vgpu_region::limits::{GpuLimit, LimitsPage, Selector, Turn};
use vgpu_region::uuid::Uuid;

use crate::account::Account;
use crate::engine::{Engine, SUCCESS};
use crate::meter::Meter;
use crate::sim::gpu;
use crate::sim::gpu::Gpu;
use crate::stream::Stream;
use crate::turns::Turns;
use crate::{batch_close, cost_model, launch};

/// A microsecond, a millisecond and a second, in nanoseconds.
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// A process with one context. It leaks what the library never frees.
pub struct Process {
    pub meter: &'static Meter,
}

impl Process {
    pub fn new(budget: &'static Budget, percent: u32, number: u16) -> Self {
        Self::make(budget, percent, number, 0)
    }

    pub fn with_mps(budget: &'static Budget, percent: u32, mps_percent: u32) -> Self {
        Self::make(budget, percent, 1, mps_percent)
    }

    fn make(budget: &'static Budget, percent: u32, number: u16, mps_percent: u32) -> Self {
        let limit: &'static GpuLimit = Box::leak(Box::new(GpuLimit::new(Selector::All)));
        limit.cores.store(percent, Relaxed);
        // SAFETY: an all-zero table is empty and valid.
        let costs = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let page: &'static LimitsPage = Box::leak(Box::new(LimitsPage::new([])));
        let turns = Turns::new(page, Uuid([1; 16]));
        let account =
            Box::leak(Box::new(Account::new(budget, limit, costs, number, turns, Box::leak(Box::default())).with_mps(mps_percent)));
        Self { meter: Box::leak(Box::new(Meter::new(1, account))) }
    }

    pub fn stream(&self, number: u64) -> &'static Stream {
        self.meter.stream(number + 1, new_stream).unwrap()
    }

    /// Waits for a stream: by a call of the driver, or by querying in a loop.
    pub fn wait(&self, gpu: &Gpu, stream: &'static Stream, calls_driver: bool) {
        if calls_driver {
            batch_close::before_wait(gpu, self.meter, [stream].into_iter());
        }
        gpu.synchronize(handle(stream));
        if calls_driver {
            batch_close::after_wait(gpu, self.meter, [stream].into_iter());
        }
    }

    pub fn launch(&self, gpu: &Gpu, stream: &Stream, kind: u64, length_ns: u64) {
        self.launch_after(gpu, stream, kind, length_ns, 0);
    }

    /// Makes a launch whose function the driver loads first, for `loading_ns` nanoseconds.
    pub fn launch_after(&self, gpu: &Gpu, stream: &Stream, kind: u64, length_ns: u64, loading_ns: u64) {
        self.launch_around(gpu, stream, kind, || {
            gpu.pass(loading_ns);
            gpu.launch(handle(stream), length_ns);
        });
    }

    /// Makes a launch by `call`.
    pub fn launch_around(&self, gpu: &Gpu, stream: &Stream, kind: u64, call: impl FnOnce()) {
        let call = || {
            call();
            SUCCESS
        };
        let made = launch::launch(gpu, self.meter, (stream, handle(stream)), cost_model::key(&[kind]), || false, call);
        assert_eq!(made, Some(SUCCESS));
    }
}

/// Returns the simulated handle of a stream.
pub fn handle(stream: &Stream) -> crate::engine::Handle {
    gpu::stream(stream.id.load(Relaxed) as usize)
}

pub fn new_stream() -> *mut Stream {
    // SAFETY: an all-zero stream is unused and valid.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// Gives the process a turn of a second, or updates the arbiter's heartbeat.
pub fn give_turn(process: &Process) {
    let turns = &process.meter.account.turns;
    let turn = turns.page.turn_for(turns.uuid).unwrap();
    turn.length.store(1_000_000, Relaxed);
    turn.word.store(4 + Turn::OPEN, Relaxed);
    turn.beat.fetch_add(1, Relaxed);
}

pub fn budget() -> &'static Budget {
    Box::leak(Box::default())
}

/// Returns mean and standard deviation of the GPU's utilization in 100 ms windows, in percent.
pub fn shares(gpu: &Gpu, from: u64, to: u64) -> (f64, f64) {
    let windows: Vec<f64> = (0..)
        .map(|n| from + n * 100 * MS)
        .take_while(|&at| at + 100 * MS <= to)
        .map(|at| gpu.used(at, at + 100 * MS) as f64 / 1e6)
        .collect();
    let mean = windows.iter().sum::<f64>() / windows.len() as f64;
    (mean, (windows.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / windows.len() as f64).sqrt())
}

/// Launches kernels of one length back to back into `streams` streams for `length_ns` nanoseconds. Returns the GPU, the start, and the process.
pub fn busy(percent: u32, kernel_ns: u64, streams: u64, length_ns: u64) -> (Gpu, u64, Process) {
    let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
    let streams: Vec<_> = (0..streams).map(|number| process.stream(number)).collect();
    let start = gpu.now();
    for stream in streams.iter().cycle() {
        if gpu.now() > start + length_ns {
            break;
        }
        process.launch(&gpu, stream, 1, kernel_ns);
    }
    (gpu, start, process)
}
