//! A tenant's process: keeps the GPU busy, or uses it periodically, and prints what it finished and when.
//!
//! Prints one line for each fact: `rounds_per_us X`, `done MICROSECONDS COUNT`, `cpu MICROSECONDS` after the first second, `launch P50
//! P99`, `wait MICROSECONDS` (see [`crate::requests`], too).

use std::time::{Duration, Instant};

use vgpu_test_programs::cuda::{self, check, sys};

use crate::kernel::{self, Kernels, Result};

/// The work of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Rounds of one kernel.
    pub rounds: u32,
    /// Expected time of a kernel alone, in µs: determines how far ahead launches are queued.
    pub length_us: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of streams.
    pub streams: usize,
    /// Launches in a graph; 0 for plain launches.
    pub graph: u32,
    /// Period in ms: of single kernels, or of alternating work and rest of a busy tenant; 0 for continuous work.
    pub every_ms: u64,
    /// Launches of a request.
    pub launches: u32,
    /// Mean number of requests in a second.
    pub per_second: f64,
    /// Delay after the start of the other tenants, in ms.
    pub delay_ms: u64,
    /// Rest before the start, after 20 kernels, in ms; 0 for a start without them.
    pub rest_ms: u64,
    /// Wall-clock time of the start, in ms since 1970, so that tenants start together; 0 for at once.
    pub start_ms: u128,
}

/// Returns the CPU time of `RUSAGE_SELF` or `RUSAGE_THREAD`, in µs.
pub fn rusage(who: i32) -> f64 {
    // SAFETY: an all-zero rusage is valid, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
        micros(usage.ru_utime) + micros(usage.ru_stime)
    }
}

/// Prints the number of rounds that a kernel does in a microsecond.
///
/// # Errors
/// The driver's error.
pub fn calibrate() -> Result<()> {
    cuda::start(0)?;
    let (kernels, stream) = (Kernels::load()?, kernel::stream()?);
    let run = |rounds: u32| -> Result<f64> {
        let begin = Instant::now();
        kernels.work(stream, rounds)?;
        cuda::synchronize()?;
        Ok(begin.elapsed().as_secs_f64() * 1e6)
    };
    for _ in 0..50 {
        run(100_000)?;
    }
    let mut best = f64::MAX;
    for _ in 0..20 {
        best = best.min((run(1_000_000)? - run(200_000)?) / 800_000.0);
    }
    println!("rounds_per_us {}", 1.0 / best);
    Ok(())
}

/// Returns the wall-clock time in ms since 1970.
pub fn now_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_millis())
}

/// Sleeps until a wall-clock time in ms since 1970.
pub fn until(start_ms: u128) {
    while start_ms > now_ms() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Keeps the GPU busy.
///
/// # Errors
/// The driver's error.
pub fn busy(job: &Job) -> Result<()> {
    let context = cuda::start(0)? as usize;
    let kernels = Kernels::load()?;
    let streams = (0..job.streams.max(1)).map(|_| kernel::stream()).collect::<Result<Vec<_>>>()?;
    let exec = if job.graph > 0 { Some(kernel::graph(kernels, streams[0], job.graph, job.rounds)?) } else { None };
    let length = job.length_us * f64::from(job.graph.max(1));
    // One event for about a millisecond of work in each stream, three of them ahead; another thread records when each is reached.
    let group = (1000.0 / length / streams.len() as f64).clamp(1.0, 200.0) as usize;
    let count = 5 * streams.len();
    let events = (0..count).map(|_| kernel::event().map(|event| event as usize)).collect::<Result<Vec<_>>>()?;
    if job.rest_ms != 0 {
        until(job.start_ms.saturating_sub(job.rest_ms.into()));
        for _ in 0..20 {
            kernels.work(streams[0], job.rounds)?;
        }
        cuda::synchronize()?;
    }
    until(job.start_ms);
    // One-time work belongs to the first second.
    let (start, mut cpu) = (Instant::now(), None);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<usize>(3 * streams.len());
    let seen = std::thread::spawn(move || -> Result<Vec<f64>> {
        // SAFETY: the primary context lives as long as the process.
        check(unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) })?;
        let mut times = Vec::new();
        for event in receiver {
            // SAFETY: the event is live and was recorded before it was sent.
            check(unsafe { sys::cuEventSynchronize(event as sys::CUevent) })?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    });
    let mut next = events.iter().cycle();
    while start.elapsed().as_secs_f64() < job.seconds {
        if cpu.is_none() && start.elapsed().as_secs() >= 1 {
            cpu = Some(rusage(libc::RUSAGE_SELF));
        }
        if job.every_ms != 0 && start.elapsed().as_millis() as u64 / job.every_ms % 2 == 1 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        for stream in &streams {
            for _ in 0..group {
                match exec {
                    // SAFETY: the graph is instantiated and the stream is live.
                    Some(exec) => check(unsafe { sys::cuGraphLaunch(exec, *stream) })?,
                    None => kernels.work(*stream, job.rounds)?,
                }
            }
            let event = next.next().copied().unwrap_or_default();
            // SAFETY: the event and the stream are live.
            check(unsafe { sys::cuEventRecord(event as sys::CUevent, *stream) })?;
            if sender.send(event).is_err() {
                break;
            }
        }
    }
    drop(sender);
    let cpu = rusage(libc::RUSAGE_SELF) - cpu.unwrap_or(f64::NAN);
    let times = seen.join().unwrap_or(Err(sys::CUresult::CUDA_ERROR_UNKNOWN))?;
    println!("cpu {cpu}");
    for time in times {
        println!("done {time:.1} {group}");
    }
    Ok(())
}

/// Runs two threads with a stream each and kernels of different lengths: `job`'s, and 200 times that, clamped to 2 to 20 ms. Prints how
/// many µs of work each finished after the first second.
///
/// # Errors
/// The driver's error.
pub fn threads(job: &Job) -> Result<()> {
    let context = cuda::start(0)? as usize;
    let kernels = Kernels::load()?;
    let per_us = f64::from(job.rounds) / job.length_us;
    let run = move |length: f64, seconds: f64| -> Result<f64> {
        // SAFETY: the primary context lives as long as the process.
        check(unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) })?;
        let stream = kernel::stream()?;
        let (start, mut done) = (Instant::now(), 0.0);
        let group = (1000.0 / length).clamp(1.0, 100.0) as u32;
        while start.elapsed().as_secs_f64() < seconds {
            for _ in 0..group {
                kernels.work(stream, (length * per_us) as u32)?;
            }
            // SAFETY: the stream is live.
            check(unsafe { sys::cuStreamSynchronize(stream) })?;
            done += if start.elapsed().as_secs_f64() > 1.0 { length * f64::from(group) } else { 0.0 };
        }
        Ok(done)
    };
    let (short, long, seconds) = (job.length_us, (job.length_us * 200.0).clamp(2_000.0, 20_000.0), job.seconds);
    let other = std::thread::spawn(move || run(long, seconds));
    let short = run(short, seconds)?;
    let long = other.join().unwrap_or(Err(sys::CUresult::CUDA_ERROR_UNKNOWN))?;
    println!("launch {short:.0} {long:.0}");
    Ok(())
}

/// Runs one kernel in every period and prints how long each took.
///
/// # Errors
/// The driver's error.
pub fn periodic(job: &Job) -> Result<()> {
    cuda::start(0)?;
    let (kernels, stream) = (Kernels::load()?, kernel::stream()?);
    until(job.start_ms);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < job.seconds {
        let begin = Instant::now();
        kernels.work(stream, job.rounds)?;
        cuda::synchronize()?;
        println!("wait {:.1}", begin.elapsed().as_secs_f64() * 1e6);
        std::thread::sleep(Duration::from_millis(job.every_ms));
    }
    Ok(())
}

/// Measures the host's cost of a launch, in bursts of 900 with a pause after each, from `threads` threads with a stream each.
///
/// # Errors
/// The driver's error.
pub fn launches(threads: usize) -> Result<()> {
    let context = cuda::start(0)? as usize;
    let kernels = Kernels::load()?;
    let run = move || -> Result<Vec<f64>> {
        // SAFETY: the primary context lives as long as the process.
        check(unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) })?;
        let stream = kernel::stream()?;
        let mut nanos = Vec::new();
        for burst in 0..60 {
            for launch in 0..900 {
                let begin = Instant::now();
                kernels.empty(stream)?;
                // The first launches of a burst find cold caches, natively too.
                if burst > 5 && launch > 50 {
                    nanos.push(begin.elapsed().as_nanos() as f64);
                }
            }
            // SAFETY: the stream is live.
            check(unsafe { sys::cuStreamSynchronize(stream) })?;
            std::thread::sleep(Duration::from_millis(12));
        }
        Ok(nanos)
    };
    let handles: Vec<_> = (0..threads).map(|_| std::thread::spawn(run)).collect();
    let mut nanos = Vec::new();
    for handle in handles {
        nanos.extend(handle.join().unwrap_or(Err(sys::CUresult::CUDA_ERROR_UNKNOWN))?);
    }
    nanos.sort_by(f64::total_cmp);
    println!("launch {:.0} {:.0}", nanos[nanos.len() / 2], nanos[nanos.len() * 99 / 100]);
    Ok(())
}
