//! Worker thread that simulates one GPU for this process: it starts ready operations and lets their time pass.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use simgpu_device::now_ns;

use crate::driver::Driver;
use crate::objects::{HostCall, Queues, SharedQueues, Work};

/// Interval at which a stream that waits for a value polls memory.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Starts the worker of a GPU, and a thread that calls its host functions.
pub fn start(driver: &'static Driver, gpu: usize) {
    let (calls, to_call) = channel::<(usize, HostCall)>();
    let caller = move || {
        for (key, call) in to_call {
            if let Some(function) = call.function {
                // SAFETY: the program submitted the function to be called with this argument.
                unsafe { function(std::ptr::with_exposed_provenance_mut(call.data)) };
            }
            finish(&driver.streams, &mut lock(&driver.streams), key, now_ns());
        }
    };
    spawn(caller);
    spawn(move || {
        // SAFETY: only sets the timer slack of this thread, to 1 ns.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        work(driver, gpu, &calls);
    });
}

/// Starts a thread that blocks all signals, so that the program's handlers do not run on it.
fn spawn(body: impl FnOnce() + Send + 'static) {
    // SAFETY: the sets live through the calls; the new thread inherits the mask, which is then restored.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed::<libc::sigset_t>());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        std::thread::spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}

fn lock(shared: &'static SharedQueues) -> MutexGuard<'static, Queues> {
    shared.queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Operation that occupies the GPU, possibly with others of this process.
struct Active {
    key: usize,
    work: Work,
    /// Earliest start, ns.
    ready: u64,
    /// Remaining duration, ns.
    left_ns: u64,
}

fn work(driver: &'static Driver, gpu: usize, calls: &Sender<(usize, HostCall)>) -> ! {
    let shared = &driver.streams;
    let mut queues = lock(shared);
    let mut active = Vec::<Active>::new();
    let mut resting = true;
    loop {
        shared.arrived[gpu].store(false, Ordering::Release);
        finish_copies(shared, &mut queues, gpu);
        queues = start_ready(shared, queues, gpu, &mut active, calls);
        if active.is_empty() {
            if !resting {
                driver.slot.set_idle(gpu);
                resting = true;
            }
            queues = pause(shared, queues, gpu);
            continue;
        }
        resting = false;
        drop(queues);
        let op = active.iter().map(|active| active.left_ns).min().unwrap_or(0);
        let ready = active.iter().map(|active| active.ready).min().unwrap_or(0);
        let span = driver.slot.run_interruptible(gpu, ready, op, &shared.arrived[gpu]);
        for active in &mut active {
            active.left_ns -= span.gpu_ns.min(active.left_ns);
        }
        let (done, left) = std::mem::take(&mut active).into_iter().partition::<Vec<_>, _>(|active| active.left_ns == 0);
        active = left;
        done.iter().for_each(|done| done.work.perform());
        queues = lock(shared);
        for done in done {
            complete(shared, &mut queues, done.key, &done.work, span.end_ns);
        }
    }
}

/// Starts all operations that may start now. Completes those that take no time.
fn start_ready(
    shared: &'static SharedQueues,
    mut queues: MutexGuard<'static, Queues>,
    gpu: usize,
    active: &mut Vec<Active>,
    calls: &Sender<(usize, HostCall)>,
) -> MutexGuard<'static, Queues> {
    while let Some(key) = queues.ready(gpu) {
        let earliest = queues.earliest_start_ns(key);
        let Some(queue) = queues.streams.get_mut(&key) else { break };
        let Some(op) = queue.ops.front() else { break };
        let (ready, work) = (op.queued_ns.max(earliest), op.work.clone());
        let taken = active.iter().map(|active| active.work.share_permille()).sum::<u32>();
        if work.gpu_ns().is_some() && !active.is_empty() && taken + work.share_permille() > 1000 {
            break;
        }
        queue.running = true;
        if let Some(left_ns) = work.gpu_ns() {
            active.push(Active { key, work, ready, left_ns });
        } else if let Some(ns) = work.copy_ns() {
            queue.copy_end_ns = Some(ready + ns);
            drop(queues);
            work.perform();
            queues = lock(shared);
        } else if let Work::HostCall(call) = work {
            let _ = calls.send((key, call));
        } else {
            let end = match work {
                Work::WaitEvent { event, .. } => ready.max(queues.events.find(event).map_or(0, |event| event.time_ns)),
                Work::WaitValue { .. } => now_ns(),
                _ => ready,
            };
            work.perform();
            complete(shared, &mut queues, key, &work, end);
        }
    }
    queues
}

/// Completes the first operation of a stream and its event.
fn complete(shared: &SharedQueues, queues: &mut Queues, key: usize, work: &Work, end: u64) {
    if let &Work::RecordEvent { event, number, .. } = work
        && let Some(event) = queues.events.find_mut(event)
    {
        event.completed = event.completed.max(number);
        event.time_ns = end;
    }
    finish(shared, queues, key, end);
}

/// Removes the first operation of a stream.
fn finish(shared: &SharedQueues, queues: &mut Queues, key: usize, end: u64) {
    if let Some(queue) = queues.streams.get_mut(&key) {
        queue.ops.pop_front();
        queue.running = false;
        queue.copy_end_ns = None;
        queue.cursor_ns = queue.cursor_ns.max(end);
    }
    shared.changed.notify_all();
}

fn finish_copies(shared: &SharedQueues, queues: &mut Queues, gpu: usize) {
    let now = now_ns();
    let done = queues.streams.iter().filter(|(_, queue)| queue.gpu == gpu && queue.copy_end_ns.is_some_and(|until| until <= now));
    let done = done.map(|(&key, queue)| (key, queue.copy_end_ns.unwrap_or(now))).collect::<Vec<_>>();
    for (key, end) in done {
        finish(shared, queues, key, end);
    }
}

/// Waits for a change, for the end of the next copy, or for the next poll of a value.
fn pause(shared: &'static SharedQueues, queues: MutexGuard<'static, Queues>, gpu: usize) -> MutexGuard<'static, Queues> {
    let own = || queues.streams.values().filter(|queue| queue.gpu == gpu);
    let next = own().filter_map(|queue| queue.copy_end_ns).min().map(|until| Duration::from_nanos(until.saturating_sub(now_ns()).max(1)));
    let looks = own().any(|queue| matches!(queue.ops.front(), Some(op) if matches!(op.work, Work::WaitValue { .. })));
    match next.into_iter().chain(looks.then_some(POLL_INTERVAL)).min() {
        Some(time) => shared.changed.wait_timeout(queues, time).unwrap_or_else(PoisonError::into_inner).0,
        None => shared.changed.wait(queues).unwrap_or_else(PoisonError::into_inner),
    }
}
