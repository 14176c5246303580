//! Part that starts a [writer](super::writer) for each container that requests files, and hands it the container's state. It opens none of
//! the files itself.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tracing::{debug, warn};

use super::launch::{self, Assignment, Part, Request};
use super::mailbox::{Mailbox, Reader};
use super::pulse::Pulse;
use crate::capabilities;
use crate::settings::Settings;
use crate::snapshot::ContainerState;

/// Time between two looks at the containers and the writers.
const INTERVAL: Duration = Duration::from_millis(200);
/// Upper limit of writers.
const MAX_WRITERS: usize = 256;
/// Time after which a writer that was killed or failed is started again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Time for all writers to complete their files when this part ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the writer of a container that is gone to complete its files.
const FINISH_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs until `stop` is set and the writers have completed their files.
///
/// # Errors
/// The part was not started by the supervisor.
pub fn run(mut assignment: Assignment, stop: &AtomicBool) -> io::Result<()> {
    capabilities::restrict_part(&capabilities::FILES);
    assignment.follow_parent()?;
    let [pulse, requests] = assignment.descriptors::<2>()?;
    let (mut pulse, mut requests) = (Pulse::from(pulse), Reader::<Vec<ContainerState>>::from(requests));
    let mut writers = Writers { settings: assignment.settings, by_container: HashMap::new(), ending: Vec::new(), is_full: false };
    while !stop.load(Relaxed) {
        if let Some(containers) = requests.read() {
            writers.update(&containers);
        }
        writers.reap();
        pulse.beat();
        thread::sleep(INTERVAL);
    }
    writers.finish();
    Ok(())
}

/// Container by the name of its directory and its creation time.
type Key = (String, u64);

/// Writer of one container.
struct Writer {
    states: Mailbox<ContainerState>,
    /// `None` once it has ended.
    child: Option<Child>,
    /// Time to start it again.
    retry: Option<Instant>,
}

/// The writers of all containers.
struct Writers {
    settings: Settings,
    by_container: HashMap<Key, Writer>,
    /// Writers of containers that are gone, and when they have to end.
    ending: Vec<(Child, Instant)>,
    /// Whether the limit was reached.
    is_full: bool,
}

impl Writers {
    /// Starts the missing writers of the containers that request files, hands all of them the new states, and stops those of containers that
    /// are gone.
    fn update(&mut self, containers: &[ContainerState]) {
        let mut wanted = HashSet::new();
        for container in containers {
            let key = (container.dir_name.clone(), container.created);
            if let Err(error) = self.hand(&key, container) {
                warn!(container = container.name(), %error, "cannot start the writer of the container's files");
            }
            wanted.insert(key);
        }
        let gone: Vec<Key> = self.by_container.keys().filter(|key| !wanted.contains(*key)).cloned().collect();
        for child in gone.iter().filter_map(|key| self.by_container.remove(key)?.child) {
            stop(&child);
            self.ending.push((child, Instant::now() + FINISH_TIMEOUT));
        }
    }

    /// Hands a container's state to its writer, which is started if it does not run.
    fn hand(&mut self, key: &Key, container: &ContainerState) -> io::Result<()> {
        if !self.by_container.contains_key(key) {
            if self.by_container.len() + self.ending.len() >= MAX_WRITERS {
                if !std::mem::replace(&mut self.is_full, true) {
                    warn!(limit = MAX_WRITERS, "too many containers request files: expected at most the limit");
                }
                return Ok(());
            }
            let writer = Writer { states: Mailbox::create()?, child: None, retry: Some(Instant::now()) };
            self.by_container.insert(key.clone(), writer);
        }
        let Some(writer) = self.by_container.get_mut(key) else { return Ok(()) };
        let (Some(init), Some(init_started)) = (container.init, container.init_started) else { return Ok(()) };
        if writer.child.is_some() {
            return writer.states.write(container);
        }
        if writer.retry.is_none_or(|retry| retry > Instant::now()) {
            return Ok(());
        }
        writer.retry = Some(Instant::now() + RETRY_INTERVAL);
        writer.states.write(container)?;
        let request = Request {
            dir_name: container.dir_name.clone(),
            init,
            init_started,
            name: container.name(),
            hami_cache: container.hami_cache.clone(),
            trace_dir: container.trace_dir.clone(),
        };
        let states = writer.states.reader()?;
        writer.child = Some(launch::start(Part::Writer, &self.settings, Some(request), &[states.as_fd()])?);
        Ok(())
    }

    /// Collects the writers that have ended. One that has nothing left to write is not started again.
    fn reap(&mut self) {
        for ((dir_name, _), writer) in &mut self.by_container {
            let Some(Ok(Some(status))) = writer.child.as_mut().map(Child::try_wait) else { continue };
            debug!(container = dir_name, %status, "the writer of a container's files has ended");
            writer.child = None;
            if status.success() {
                writer.retry = None;
            }
        }
        self.ending.retain_mut(|(child, end)| {
            if *end < Instant::now() {
                let _ = child.kill();
            }
            !matches!(child.try_wait(), Ok(Some(_)))
        });
    }

    /// Stops all writers, and waits until they have completed their files. Those that hang die with this process.
    fn finish(mut self) {
        for child in self.by_container.drain().filter_map(|(_, writer)| writer.child) {
            stop(&child);
            self.ending.push((child, Instant::now() + STOP_TIMEOUT));
        }
        let end = Instant::now() + STOP_TIMEOUT;
        while !self.ending.is_empty() && Instant::now() < end {
            self.reap();
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Tells a writer to complete its files.
fn stop(child: &Child) {
    if let Err(error) = launch::signal(child, Signal::TERM) {
        debug!(%error, "cannot stop the writer of a container's files");
    }
}
