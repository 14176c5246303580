//! What the meter needs of a clock and of CUDA. The tests put a simulated GPU with a clock of its own here.

use core::sync::atomic::AtomicU32;

use vgpu_region::uuid::Uuid;

use crate::cuda::Handle;
use crate::nvml::Power;

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
}
