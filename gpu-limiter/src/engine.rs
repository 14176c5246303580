//! The limiter's view of the clock, the operating system, and CUDA. The tests implement it with a simulated GPU and a simulated clock.

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

use vgpu_region::uuid::Uuid;

/// Handle of a stream or an event.
pub type Handle = *mut c_void;
/// Result of a launch call.
pub type Status = i32;
/// [`Status`] of a launch that the driver accepted.
pub const SUCCESS: Status = 0;
/// Handle of the legacy default stream, `CU_STREAM_LEGACY`.
pub const LEGACY_STREAM: usize = 1;

/// Power draw and power limits of a GPU, in milliwatts.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    /// Mean power draw over the last second.
    pub drawn_mw: u32,
    /// Power limit in force.
    pub limit_mw: u32,
    /// Default power limit.
    pub default_limit_mw: u32,
}

/// State of the work before a recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// All of it has finished.
    Done,
    /// Some of it has not finished.
    Pending,
    /// The event can no longer be queried: its context is destroyed or broken.
    Lost,
}

/// A launch that had to wait, for traces and the log.
#[derive(Clone, Copy, Debug)]
pub struct LaunchWait {
    /// True if it waited for budget.
    pub for_budget: bool,
    /// True if it waited for the container's turn.
    pub for_turn: bool,
    /// Handle of its stream.
    pub stream: u64,
    /// Start of the wait, in nanoseconds of the engine's clock.
    pub began_ns: u64,
    /// End of the wait, in nanoseconds of the engine's clock.
    pub ended_ns: u64,
    /// Expected GPU time of the launch, in nanoseconds.
    pub cost_ns: u64,
    /// Compute limit in force, in percent.
    pub percent: u32,
}

/// A clock, ways to wait, and the driver's events.
pub trait Engine {
    /// Returns the time of a monotonic clock, in nanoseconds.
    fn now(&self) -> u64;
    /// Returns the approximate time of the same clock. Cheaper than [`Engine::now`]; good enough to detect a pause.
    fn now_approx(&self) -> u64 {
        self.now()
    }
    /// Sleeps for about `duration_ns` nanoseconds.
    fn sleep(&self, duration_ns: u64);
    /// Sleeps for about `duration_ns` nanoseconds, or until `word` differs from `value`. Corrects for the system's timer slack.
    fn sleep_while(&self, word: &AtomicU32, value: u32, duration_ns: u64);
    /// Waits until `word` differs from `value`, for at most about `timeout_ns` nanoseconds.
    fn wait_for_change(&self, word: &AtomicU32, value: u32, timeout_ns: u64);
    /// Wakes all threads that wait for `word` to change.
    fn wake(&self, word: &AtomicU32);
    /// Creates a timing event in the meter's context. Returns `None` if the driver refused.
    fn create_event(&self) -> Option<Handle>;
    /// Records the event behind everything launched into the stream so far. Returns false if the driver refused.
    fn record_event(&self, event: Handle, stream: Handle) -> bool;
    /// Returns the state of a recorded event.
    fn event_status(&self, event: Handle) -> EventStatus;
    /// Returns the nanoseconds of GPU time from one finished event to another; negative if `to` was recorded first.
    fn elapsed_ns(&self, from: Handle, to: Handle) -> Option<i64>;
    /// Returns true if an event may be recorded in a stream that another call of the program may be using.
    fn can_record_in(&self, stream: Handle) -> bool;
    /// Returns true if everything launched into the stream has finished.
    fn is_idle(&self, stream: Handle) -> bool;
    /// Returns the power draw of the GPU with this UUID, if known.
    fn power(&self, gpu: Uuid) -> Option<Power>;
    /// Returns the GPU's utilization over the last second or less by all processes, in percent. Takes milliseconds (NVML on H100: 2.5).
    fn busy_percent(&self, gpu: Uuid) -> Option<u32>;
    /// Called after a launch had to wait.
    fn on_wait(&self, wait: &LaunchWait);
}
