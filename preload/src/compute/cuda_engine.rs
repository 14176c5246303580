//! The limiter's engine on a real context: the driver's events and the system's clock.

use core::sync::atomic::AtomicU32;

use vgpu_region::limits::LogLevel;
use vgpu_region::trace::Kind;
use vgpu_region::uuid::Uuid;

use crate::loader::driver;
use crate::loader::driver::CaptureRelaxed;
use crate::nvml_query;
use crate::os::log::{self, Throttle};
use crate::os::{clock, futex, tsc};
use crate::trace::sink;
use vgpu_cuda_abi::cuda::{Handle, NOT_READY, PER_THREAD_STREAM, SUCCESS};
use vgpu_gpu_limiter::engine::{Engine, EventStatus, LaunchWait, Power};

/// Default timer slack, by which a sleep lasts longer than requested, in nanoseconds (`PR_GET_TIMERSLACK` is 50 µs).
const TIMER_SLACK_NS: u64 = 50_000;

/// Returns the duration to request for a sleep of about `duration_ns` nanoseconds.
fn without_slack(duration_ns: u64) -> u64 {
    if duration_ns > 2 * TIMER_SLACK_NS { duration_ns - TIMER_SLACK_NS } else { duration_ns }
}

/// Limits the log lines about waits.
static WAIT_LOGGED: Throttle = Throttle::new();

/// The engine. Events are used in relaxed capture mode, because the program may be capturing a stream.
pub struct Cuda {
    /// Context in which events are created.
    pub context: Handle,
}

impl Engine for Cuda {
    fn now(&self) -> u64 {
        let now = clock::monotonic();
        tsc::compare(now);
        now
    }

    #[inline]
    fn now_approx(&self) -> u64 {
        tsc::now().unwrap_or_else(clock::monotonic)
    }

    fn sleep(&self, duration_ns: u64) {
        clock::nap(without_slack(duration_ns).cast_signed());
    }

    fn sleep_while(&self, word: &AtomicU32, value: u32, duration_ns: u64) {
        self.wait_for_change(word, value, without_slack(duration_ns));
    }

    fn wait_for_change(&self, word: &AtomicU32, value: u32, timeout_ns: u64) {
        futex::wait(word, value, timeout_ns);
    }

    fn wake(&self, word: &AtomicU32) {
        futex::wake(word);
    }

    fn create_event(&self) -> Option<Handle> {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: the context lives, as the stream that is about to be launched into is in it.
        unsafe { driver::create_event(self.context) }
    }

    fn record_event(&self, event: Handle, stream: Handle) -> bool {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: the limiter's event, and a stream that the program uses in this call.
        unsafe { driver::event_record(event, stream) == SUCCESS }
    }

    fn event_status(&self, event: Handle) -> EventStatus {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: the limiter's event, in a context that is not closed.
        match unsafe { driver::event_query(event) } {
            SUCCESS => EventStatus::Done,
            NOT_READY => EventStatus::Pending,
            _ => EventStatus::Lost,
        }
    }

    fn elapsed_ns(&self, from: Handle, to: Handle) -> Option<i64> {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: the limiter's events, in a context that is not closed.
        unsafe { driver::elapsed_ns(from, to) }
    }

    fn can_record_in(&self, stream: Handle) -> bool {
        // The per-thread default stream differs for each thread, the legacy one belongs to the current context, and an event must not be
        // captured.
        // The stream is locked and not retired, so the program is not destroying it.
        stream != PER_THREAD_STREAM
            && (stream as usize > PER_THREAD_STREAM as usize || driver::current_context() == self.context)
            && !driver::is_captured(stream)
    }

    fn is_idle(&self, stream: Handle) -> bool {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: a stream that the program uses in this call, or one that is locked and not retired, as above.
        unsafe { driver::stream_query(stream) == SUCCESS }
    }

    fn power(&self, gpu: Uuid) -> Option<Power> {
        nvml_query::power(gpu)
    }

    fn busy_percent(&self, gpu: Uuid) -> Option<u32> {
        nvml_query::busy(gpu)
    }

    fn on_wait(&self, wait: &LaunchWait) {
        let &LaunchWait { for_budget, for_turn, stream, began_ns, ended_ns, cost_ns, percent } = wait;
        if for_budget && WAIT_LOGGED.allow() {
            let waited_ms = ended_ns.saturating_sub(began_ns) / 1_000_000;
            log::line(
                LogLevel::Info,
                format_args!("launches wait: the container has {percent}% of the GPU's time; the last waited {waited_ms} ms"),
            );
        }
        let kind = if for_turn { Kind::Turn } else { Kind::Budget };
        sink::span(kind, stream, began_ns, ended_ns, cost_ns);
    }
}
