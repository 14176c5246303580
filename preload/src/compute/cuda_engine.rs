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
use vgpu_cuda_abi::cuda::{Handle, NOT_READY, SUCCESS};
use vgpu_gpu_limiter::engine::{Engine, EventStatus, LaunchWait, Power};

/// Default timer slack, by which a sleep lasts longer than requested, in nanoseconds (`PR_GET_TIMERSLACK` is 50 µs).
const TIMER_SLACK_NS: u64 = 50_000;

/// Returns the duration to request for a sleep of about `duration_ns` nanoseconds.
fn without_slack(duration_ns: u64) -> u64 {
    if duration_ns > 2 * TIMER_SLACK_NS { duration_ns - TIMER_SLACK_NS } else { duration_ns }
}

/// Converts a duration in nanoseconds.
fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
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
        let time = timespec(without_slack(duration_ns));
        // SAFETY: errno belongs to this thread, and the program may be about to read it. A signal only ends the sleep early.
        unsafe {
            let errno = *libc::__errno_location();
            libc::nanosleep(&raw const time, core::ptr::null_mut());
            *libc::__errno_location() = errno;
        }
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
        let foreign = driver::current_context() != self.context;
        let (mut event, mut popped) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the context exists, as the stream that is about to be launched into is in it. A pushed context is popped.
        unsafe {
            if foreign && driver::context_push(self.context) != SUCCESS {
                return None;
            }
            // Flags: with timing, without blocking waits.
            let status = driver::event_create(&raw mut event, 0);
            if foreign {
                driver::context_pop(&raw mut popped);
            }
            (status == SUCCESS).then_some(event)
        }
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
        let mut milliseconds = 0f32;
        // SAFETY: the limiter's events, in a context that is not closed; the driver writes one number.
        let status = unsafe { driver::event_elapsed(&raw mut milliseconds, from, to) };
        (status == SUCCESS).then_some((f64::from(milliseconds) * 1e6) as i64)
    }

    fn can_record_in(&self, stream: Handle) -> bool {
        // The per-thread default stream differs for each thread, the legacy one belongs to the current context, and an event must not be
        // captured.
        let mut capturing = 0;
        stream as usize != 2
            && (stream as usize > 2 || driver::current_context() == self.context)
            // SAFETY: the stream is locked and not retired, so the program is not destroying it.
            && unsafe { driver::is_capturing(stream, &raw mut capturing) == SUCCESS }
            && capturing == 0
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
