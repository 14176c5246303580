//! What the meter needs of a clock and of CUDA. The tests put a simulated GPU with a clock of its own here.

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

use vgpu_region::uuid::Uuid;

/// A handle of the engine's: a stream or an event.
pub type Handle = *mut c_void;
/// What a launch answers.
pub type Status = i32;
/// The launch was made.
pub const SUCCESS: Status = 0;

/// A GPU's power, in milliwatts.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    /// What it draws, as a mean over the last second.
    pub drawn: u32,
    /// The most that it may draw now.
    pub limit: u32,
    /// The most that it may draw unless somebody changes that.
    pub usual: u32,
}

/// How far the work before an event has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it is finished.
    Done,
    /// Not yet.
    Pending,
    /// The event cannot be asked any more; its context is gone or broken.
    Lost,
}

/// A launch that had to wait, for traces and the log.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// It waited for budget.
    pub for_budget: bool,
    /// It waited for its turn.
    pub for_turn: bool,
    /// The stream's handle.
    pub stream: u64,
    /// When it began to wait, in nanoseconds of the engine's clock.
    pub began: u64,
    /// When it went on.
    pub ended: u64,
    /// The GPU time that it is expected to take, in nanoseconds.
    pub cost: u64,
    /// The limit, in percent.
    pub percent: u32,
}

/// A clock, a way to wait, and events.
pub trait Engine {
    /// Nanoseconds of a clock that only goes forward.
    fn now(&self) -> u64;
    /// About the same, quicker: good for telling a pause from none.
    fn about_now(&self) -> u64 {
        self.now()
    }
    /// Waits for about this many nanoseconds.
    fn sleep(&self, nanos: u64);
    /// The same, but no longer than until the word is no longer `value`.
    fn sleep_unless(&self, word: &AtomicU32, value: u32, nanos: u64);
    /// Waits until the word is no longer `value`, at most about so many nanoseconds.
    fn wait_for_change(&self, word: &AtomicU32, value: u32, nanos: u64);
    /// Wakes those who wait for this word to change.
    fn wake(&self, word: &AtomicU32);
    /// A new timing event in the meter's context; `None` if there can be none.
    fn create(&self) -> Option<Handle>;
    /// Puts the event behind everything launched into the stream so far. Whether it could be.
    fn record(&self, event: Handle, stream: Handle) -> bool;
    /// How far a recorded event has come.
    fn progress(&self, event: Handle) -> Progress;
    /// Nanoseconds of the GPU's clock from one finished event to another, negative if `to` was first.
    fn between(&self, from: Handle, to: Handle) -> Option<i64>;
    /// Whether an event may be recorded in a stream that another call of the program may be using.
    fn reaches(&self, stream: Handle) -> bool;
    /// Whether everything launched into the stream is finished.
    fn is_idle(&self, stream: Handle) -> bool;
    /// What the GPU with this UUID draws, if it tells.
    fn power(&self, gpu: Uuid) -> Option<Power>;
    /// In how many percent of the last second or less the GPU was busy, whoever made it so. Asking takes milliseconds (NVML on H100: 2.5).
    fn busy(&self, gpu: Uuid) -> Option<u32>;
    /// A launch has waited.
    fn waited(&self, waited: &Waited);
}

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`
pub const LEGACY: usize = 1;
