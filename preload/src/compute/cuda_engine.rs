//! The meter's engine on a real context: driver events and the system's clock.

use core::sync::atomic::AtomicU32;

use vgpu_region::limits::LogLevel;
use vgpu_region::trace::Kind;
use vgpu_region::uuid::Uuid;

use crate::loader::driver;
use crate::loader::driver::CaptureRelaxed;
use crate::nvml_query;
use crate::os::log::{self, Seldom};
use crate::os::{clock, tsc};
use crate::trace::sink;
use vgpu_cuda_abi::cuda::{Handle, NOT_READY, SUCCESS};
use vgpu_gpu_limiter::engine::{Engine, Power, Progress, Waited};

/// How much longer than asked a sleep lasts by default (`PR_GET_TIMERSLACK` is 50 µs).
const SLACK: u64 = 50_000;

/// For how long to ask, to sleep for about so long.
fn less_slack(nanos: u64) -> u64 {
    if nanos > 2 * SLACK { nanos - SLACK } else { nanos }
}

static HELD: Seldom = Seldom::new();

/// A context. Every question about events is asked in relaxed mode: the program may be capturing a stream.
pub struct Cuda {
    /// Where events are made.
    pub context: Handle,
}

impl Engine for Cuda {
    fn now(&self) -> u64 {
        let now = clock::monotonic();
        tsc::compare(now);
        now
    }

    #[inline]
    fn about_now(&self) -> u64 {
        tsc::now().unwrap_or_else(clock::monotonic)
    }

    fn sleep(&self, nanos: u64) {
        let nanos = less_slack(nanos);
        let time = libc::timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ };
        // SAFETY: errno belongs to this thread, and the program may be about to read it. A signal only ends the wait early.
        unsafe {
            let errno = *libc::__errno_location();
            libc::nanosleep(&raw const time, core::ptr::null_mut());
            *libc::__errno_location() = errno;
        }
    }

    fn sleep_unless(&self, word: &AtomicU32, value: u32, nanos: u64) {
        self.wait_for_change(word, value, less_slack(nanos));
    }

    fn wait_for_change(&self, word: &AtomicU32, value: u32, nanos: u64) {
        let time = libc::timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ };
        // SAFETY: the word lives in a page shared with those who change it and wake who waits; errno belongs to this thread.
        unsafe {
            let errno = *libc::__errno_location();
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time);
            *libc::__errno_location() = errno;
        }
    }

    fn wake(&self, word: &AtomicU32) {
        // SAFETY: as above; waking nobody is fine.
        unsafe {
            let errno = *libc::__errno_location();
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
            *libc::__errno_location() = errno;
        }
    }

    fn create(&self) -> Option<Handle> {
        let _relaxed = CaptureRelaxed::enter();
        let foreign = driver::current_context() != self.context;
        let (mut event, mut popped) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the context lives: the stream that is about to be launched into is its. What is pushed is popped.
        unsafe {
            if foreign && driver::context_push(self.context) != SUCCESS {
                return None;
            }
            // Flags: timing, no blocking wait.
            let status = driver::event_create(&raw mut event, 0);
            if foreign {
                driver::context_pop(&raw mut popped);
            }
            (status == SUCCESS).then_some(event)
        }
    }

    fn record(&self, event: Handle, stream: Handle) -> bool {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: an event of ours, and a stream that the program is using in this very call.
        unsafe { driver::event_record(event, stream) == SUCCESS }
    }

    fn progress(&self, event: Handle) -> Progress {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: an event of ours in a context that is not closed.
        match unsafe { driver::event_query(event) } {
            SUCCESS => Progress::Done,
            NOT_READY => Progress::Pending,
            _ => Progress::Lost,
        }
    }

    fn between(&self, from: Handle, to: Handle) -> Option<i64> {
        let _relaxed = CaptureRelaxed::enter();
        let mut milliseconds = 0f32;
        // SAFETY: events of ours in a context that is not closed; the driver writes one number.
        let status = unsafe { driver::event_elapsed(&raw mut milliseconds, from, to) };
        (status == SUCCESS).then_some((f64::from(milliseconds) * 1e6) as i64)
    }

    fn reaches(&self, stream: Handle) -> bool {
        // Its own default stream is every thread's own; the legacy one is the current context's; into a captured one nothing may come.
        let mut capturing = 0;
        stream as usize != 2
            && (stream as usize > 2 || driver::current_context() == self.context)
            // SAFETY: a stream that is claimed and not retired, so the program is not destroying it.
            && unsafe { driver::is_capturing(stream, &raw mut capturing) == SUCCESS }
            && capturing == 0
    }

    fn is_idle(&self, stream: Handle) -> bool {
        let _relaxed = CaptureRelaxed::enter();
        // SAFETY: a stream that the program is using in this very call, or one that is claimed and not retired, as above.
        unsafe { driver::stream_query(stream) == SUCCESS }
    }

    fn power(&self, gpu: Uuid) -> Option<Power> {
        nvml_query::power(gpu)
    }

    fn busy(&self, gpu: Uuid) -> Option<u32> {
        nvml_query::busy(gpu)
    }

    fn waited(&self, waited: &Waited) {
        let &Waited { for_budget, for_turn, stream, began, ended, cost, percent } = waited;
        if for_budget && HELD.now() {
            let millis = ended.saturating_sub(began) / 1_000_000;
            log::line(
                LogLevel::Info,
                format_args!("launches wait: the container has {percent}% of the GPU's time; the last waited {millis} ms"),
            );
        }
        let kind = if for_turn { Kind::Turn } else { Kind::Budget };
        sink::span(kind, stream, began, ended, cost);
    }
}
