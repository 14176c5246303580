//! Runs tenants as processes of their own, with or without a library, and reads their output.

use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::thread::JoinHandleExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_region::limits::{GpuLimit, LimitsPage, Selector};
use vgpu_region::region::GpuAccount;
use vgpu_region::uuid::Uuid;
use vgpu_region::{map, region};

use crate::tenant::{self, Job};

/// The library between a tenant and the driver.
#[derive(Clone, Debug)]
pub enum Side {
    /// None.
    Native,
    /// Our library, and the folder of its container's files.
    Ours(PathBuf, PathBuf),
    /// Another preloaded library, and its limit in percent, which is set by the variables that HAMi-core and its relatives read.
    Peer(PathBuf, u32),
    /// Our library as a client of NVIDIA's MPS, which limits GPU time: library, folder of the container's files, folder of the daemon's
    /// pipes, and percentage.
    Mps(PathBuf, PathBuf, PathBuf, u32),
}

/// Creates the files of a container, limits and region, in a folder.
///
/// # Errors
/// A folder that cannot be written to.
pub fn container(folder: &Path, percent: u32, soft: u32) -> std::io::Result<()> {
    write(folder, &page(percent, soft))
}

/// Creates the files of a container that is a client of MPS.
///
/// # Errors
/// A folder that cannot be written to.
pub fn client_of_mps(folder: &Path, percent: u32) -> std::io::Result<()> {
    write(folder, &page(percent, 0).with_mps())
}

fn page(percent: u32, soft: u32) -> LimitsPage {
    let limit = GpuLimit::new(Selector::All);
    limit.cores.store(percent, Ordering::Relaxed);
    limit.cores_soft.store(soft, Ordering::Relaxed);
    LimitsPage::new([limit])
}

fn write(folder: &Path, page: &LimitsPage) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("limits"), page.as_bytes())?;
    std::fs::write(folder.join("region"), region::header())?;
    std::fs::OpenOptions::new().write(true).open(folder.join("region"))?.set_len(region::SIZE as u64)
}

/// Runs [`crate::launch_cost`] in a process of its own, with a container's files in this folder.
///
/// # Errors
/// A process that cannot be started or fails.
pub fn launch_cost(library: &Path, folder: &Path, stream: &str) -> std::io::Result<()> {
    container(folder, 0, 0)?;
    let mut command = Command::new(std::env::current_exe()?);
    let status = command.arg("beside").arg(library).arg(folder).arg(stream).env("VGPU_DIR", folder).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("beside ended with {status}"))) }
}

/// Returns the GPU time charged to a container so far, in µs.
///
/// # Errors
/// A region that cannot be mapped.
pub fn charged(folder: &Path) -> std::io::Result<f64> {
    let path = std::ffi::CString::new(folder.join("region").into_os_string().into_encoded_bytes())?;
    let region = map::region(&path).map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    let sum = region.gpus.iter().map(|gpu| gpu.budget.used.load(Ordering::Relaxed)).sum::<u64>();
    // SAFETY: no other reference to the region exists in this process.
    unsafe { map::unmap(region) };
    Ok(sum as f64 / 1e3)
}

/// Returns the GPUs that the container in a folder says it uses.
fn claimed_gpus(folder: &Path) -> Vec<Uuid> {
    let Ok(path) = CString::new(folder.join("region").as_os_str().as_bytes()) else { return Vec::new() };
    let Ok(region) = map::region(&path) else { return Vec::new() };
    let gpus = region.gpus.iter().filter_map(GpuAccount::uuid).collect();
    // SAFETY: no other reference to the region exists in this process.
    unsafe { map::unmap(region) };
    gpus
}

/// The arbiter for the containers in a folder, in a thread of this process.
pub struct Arbiter {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<f64>>,
}

impl Arbiter {
    /// Starts the arbiter.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, folder) = (stop.clone(), folder.to_owned());
        let thread = std::thread::spawn(move || {
            // Nobody lies here.
            vgpu_arbiter::service::run(&folder, &claimed_gpus, &seen, || {});
            tenant::rusage(libc::RUSAGE_THREAD)
        });
        Self { stop, thread: Some(thread) }
    }

    /// Returns its CPU time so far, in µs; NaN if it ended.
    pub fn cpu(&self) -> f64 {
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: the thread has not been joined, so its handle is valid, and both out-pointers are.
        let read = self.thread.as_ref().is_some_and(|thread| unsafe {
            libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
        });
        if read { time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3 } else { f64::NAN }
    }

    /// Stops the arbiter. Returns its CPU time in µs.
    pub fn stop(mut self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(f64::NAN)
    }
}

/// The output of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Times in µs after the start, each with the number of launches that were seen to finish.
    pub done: Vec<(f64, f64)>,
    /// CPU time after the first second, in µs.
    pub cpu: f64,
    /// Times that single kernels took, in µs.
    pub waits: Vec<f64>,
    /// One or two other figures, by kind of tenant.
    pub figures: Vec<f64>,
}

/// A running tenant. Killed when dropped, so that none goes on after an error of another.
pub struct Tenant(Child);

impl Drop for Tenant {
    fn drop(&mut self) {
        // Without effect on a tenant that was waited for.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Tenant {
    /// Starts this program as a tenant of this kind.
    ///
    /// # Errors
    /// A process that cannot be started.
    pub fn start(side: &Side, kind: &str, job: &Job) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["tenant", kind]);
        command.args([job.rounds.to_string(), job.length_us.to_string(), job.seconds.to_string(), job.streams.to_string()]);
        command.args([job.graph.to_string(), job.every_ms.to_string(), job.start_ms.to_string()]);
        command.args([job.launches.to_string(), job.per_second.to_string(), job.rest_ms.to_string()]);
        match side {
            Side::Native => {}
            Side::Ours(library, folder) => _ = command.env("LD_PRELOAD", library).env("VGPU_DIR", folder),
            Side::Mps(library, folder, pipes, percent) => {
                command.env("LD_PRELOAD", library).env("VGPU_DIR", folder).env("CUDA_MPS_PIPE_DIRECTORY", pipes);
                command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string());
            }
            Side::Peer(library, percent) => {
                let percent = percent.to_string();
                command.env("LD_PRELOAD", library);
                command.env("CUDA_DEVICE_SM_LIMIT", &percent).env("CUDA_CORE_LIMIT_0", &percent).env("CUDA_CORE_LIMIT", &percent);
                command.env("GPU_CORE_UTILIZATION_POLICY", "FORCE").env("LIBCUDA_LOG_LEVEL", "0");
                command.env("CUDA_DEVICE_MEMORY_SHARED_CACHE", format!("/tmp/vgpu-bench-{}.cache", std::process::id()));
            }
        }
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    /// Sends a signal to the tenant.
    pub fn signal(&self, signal: i32) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // SAFETY: the child has not been waited for, so its PID is valid.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Kills the tenant.
    pub fn end(self) {
        drop(self);
    }

    /// Waits for the tenant and reads its output.
    ///
    /// # Errors
    /// A tenant that failed.
    pub fn finish(mut self) -> std::io::Result<Output> {
        let mut output = Output::default();
        let stdout = self.0.stdout.take().ok_or_else(|| std::io::Error::other("no output"))?;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let figures: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            match (name, figures.as_slice()) {
                ("done", &[time, count]) => output.done.push((time, count)),
                ("cpu", &[time]) => output.cpu = time,
                ("wait", &[time]) => output.waits.push(time),
                ("launch" | "rounds_per_us", _) => output.figures = figures,
                _ => {}
            }
        }
        let status = self.0.wait()?;
        if status.success() { Ok(output) } else { Err(std::io::Error::other(format!("a tenant ended with {status}"))) }
    }
}

impl Output {
    /// Returns the number of launches that finished between two times in µs.
    #[must_use]
    pub fn between(&self, from: f64, to: f64) -> f64 {
        self.at(to) - self.at(from)
    }

    /// Returns the number of launches that finished by a time, interpolated between observations.
    fn at(&self, time: f64) -> f64 {
        let (mut before, mut total) = (0.0, 0.0);
        for &(seen, count) in &self.done {
            if seen >= time {
                return total + count * (time - before) / (seen - before).max(1e-9);
            }
            (before, total) = (seen, total + count);
        }
        total
    }

    /// Returns the launches per µs in each window of `width` µs.
    #[must_use]
    pub fn windows(&self, from: f64, to: f64, width: f64) -> Vec<f64> {
        let count = ((to - from) / width) as usize;
        (0..count).map(|n| self.between(from + n as f64 * width, from + (n + 1) as f64 * width) / width).collect()
    }
}
