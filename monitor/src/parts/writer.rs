//! Part that writes the files that one container requests: HAMi's shared region and trace logs.
//!
//! It is a process of its own, which has become the container's user. It can do to a file what that user can, and no more. A volume that never
//! answers stops only this process, and so does everything else that the tenant does to its files.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{DumpableBehavior, nice, set_dumpable_behavior};
use rustix::time::{ClockId, clock_gettime};
use tracing::warn;
use vgpu_oci_hook::state::{CONTAINERS, REGION};

use super::launch::{Assignment, Request};
use super::mailbox::Reader;
use super::tenant::Tenant;
use crate::hami_region::RegionFile;
use crate::snapshot::ContainerState;
use crate::trace::log_dir::LogFiles;
use crate::trace::rings::Rings;

/// Time between two copies of trace rings, as in Alnair's profiler.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two updates of HAMi's region.
const REGION_INTERVAL: Duration = Duration::from_millis(400);
/// Sleep after each pass, as a multiple of the CPU time that the pass took: a writer uses at most a quarter of a CPU.
const SLEEP_FACTOR: u32 = 3;
/// Niceness of writers. What enforces and gives turns goes first.
const NICENESS: i32 = 10;

/// Runs until `stop` is set, then completes the logs.
///
/// # Errors
/// The container is gone, or this process cannot become its user.
pub fn run(mut assignment: Assignment, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let [states] = assignment.descriptors::<1>()?;
    let request = assignment.request.take().ok_or_else(|| io::Error::other("expected a container"))?;
    let dir = assignment.settings.state_dir.join(CONTAINERS).join(&request.dir_name);
    let tenant = Tenant::find(request.init, request.init_started)?;
    // The region is vgpu's own, and out of the tenant's reach by name.
    let rings = request.trace_dir.as_ref().map(|_| Rings::open(&dir.join(REGION), true)).transpose()?;
    nice(NICENESS)?;
    // Other processes of the tenant's user may otherwise read this one's memory and descriptors.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    tenant.identity.assume()?;
    assignment.follow_parent()?;
    Writer::open(&request, &tenant.root, rings, states).follow(stop);
    Ok(())
}

/// Files of the container, without those that failed.
struct Writer<'a> {
    request: &'a Request,
    states: Reader<ContainerState>,
    region: Option<RegionFile>,
    logs: Option<(LogFiles, Rings)>,
    /// Memory that the container's account claims, in bytes.
    charged: u64,
}

impl<'a> Writer<'a> {
    /// Opens the files, with the rights that this process has by now.
    fn open(request: &'a Request, root: &File, rings: Option<Rings>, states: OwnedFd) -> Self {
        let region = request.hami_cache.as_ref().map(|path| RegionFile::open(root, path));
        let logs = request.trace_dir.as_ref().zip(rings).map(|(path, rings)| Ok((LogFiles::open(root, path)?, rings)));
        let region = region.and_then(|opened| opened.map_err(|error| warn_region(request, &error)).ok());
        let logs = logs.and_then(|opened: io::Result<_>| opened.map_err(|error| warn_logs(request, &error)).ok());
        Self { request, states: states.into(), region, logs, charged: 0 }
    }

    /// Keeps the files up to date until `stop` is set or all have failed.
    fn follow(mut self, stop: &AtomicBool) {
        let interval = if self.logs.is_some() { TRACE_INTERVAL } else { REGION_INTERVAL };
        while self.region.is_some() || self.logs.is_some() {
            let (before, is_last) = (cpu_time(), stop.load(Relaxed));
            self.update(is_last);
            if is_last {
                break;
            }
            let used = cpu_time().saturating_sub(before);
            std::thread::sleep(pause(interval, used));
        }
        if let Some((logs, _)) = self.logs
            && let Err(error) = logs.finish()
        {
            warn_logs(self.request, &error);
        }
    }

    /// Brings the files up to date.
    fn update(&mut self, is_last: bool) {
        if let Some(state) = self.states.read() {
            self.charged = state.gpus.iter().map(|share| share.charged).fold(0, u64::saturating_add);
            if let Some(Err(error)) = self.region.as_mut().map(|region| region.update(&state)) {
                warn_region(self.request, &error);
                self.region = None;
            }
        }
        let charged = self.charged;
        if let Some(Err(error)) = self.logs.as_mut().map(|(logs, rings)| logs.update(rings, charged, is_last)) {
            warn_logs(self.request, &error);
            self.logs = None;
        }
    }
}

/// Returns the time between two passes, the first of which has used this CPU time.
fn pause(interval: Duration, used: Duration) -> Duration {
    interval.max(used * SLEEP_FACTOR)
}

/// Logs why the region is no longer kept.
fn warn_region(request: &Request, error: &io::Error) {
    warn!(container = request.name, path = request.hami_cache, %error, "cannot keep HAMi's shared region");
}

/// Logs why the trace logs are no longer written.
fn warn_logs(request: &Request, error: &io::Error) {
    warn!(container = request.name, path = request.trace_dir, %error, "cannot write trace logs");
}

/// Returns the CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_uses_at_most_a_quarter_of_a_cpu() {
        for millis in [0, 1, 100, 10_000] {
            let used = Duration::from_millis(millis);
            let pause = pause(TRACE_INTERVAL, used);
            assert!(pause >= TRACE_INTERVAL && used * 4 <= used + pause);
        }
    }
}
