//! Supervisor of the parts: starts them, starts those again that die or hang, and ends all of them when it ends.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tracing::{debug, error, info, warn};

use super::launch::{self, Part};
use super::mailbox::{Mailbox, Reader};
use super::publication::{PartStatus, Publication, Status, uptime};
use super::pulse::{Monitor, Pulse};
use super::system::ServiceManager;
use super::watchdog::Watchdog;
use crate::capabilities;
use crate::http::{CredentialFiles, Credentials};
use crate::settings::Settings;
use crate::snapshot::ContainerState;

/// Time between two looks at the parts.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between two reports of the parts' state.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at the files with the certificate and the token.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a beat after which a part counts as hung.
const BEAT_TIMEOUT: Duration = Duration::from_secs(30);
/// The same before its first beat, as NVML may take long to initialise the GPUs.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time before a part is started again; doubled with each failure up to [`MAX_BACK_OFF`].
const MIN_BACK_OFF: Duration = Duration::from_millis(100);
/// Upper limit of that time. A part that has run for longer starts over with [`MIN_BACK_OFF`].
const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// Time for all parts to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a look at the parts after which the supervisor ends itself, and with it all parts, so that who started it starts it again.
const OWN_TIMEOUT: Duration = Duration::from_secs(180);

/// Runs the parts until `stop` is set. The HTTP part answers on `listener`, with the credentials in `files`.
///
/// # Errors
/// The kernel refuses the mailboxes, or a credential is malformed.
pub fn run(settings: Settings, listener: TcpListener, files: CredentialFiles, stop: &AtomicBool) -> io::Result<()> {
    capabilities::restrict_supervisor();
    launch::keep_descriptors()?;
    raise_descriptor_limit();
    let mut protection = Protection::new(files)?;
    let shared = Shared::new(settings, listener, protection.mailbox.reader()?)?;
    let turns = shared.settings.turns;
    let wanted = [Part::Enforce, Part::Arbiter, Part::Http, Part::Files].into_iter().filter(|part| turns || *part != Part::Arbiter);
    let mut parts: Vec<Supervised> = wanted.map(Supervised::new).collect();
    let mut manager = ServiceManager::default();
    let mut reported = None::<Instant>;
    let watchdog = Watchdog::start(OWN_TIMEOUT, end_hanging)?;
    while !stop.load(Relaxed) {
        watchdog.feed();
        parts.iter_mut().for_each(|part| part.look(&shared));
        if reported.is_none_or(|reported| reported.elapsed() >= REPORT_INTERVAL) {
            reported = Some(Instant::now());
            shared.report(&parts);
            protection.refresh();
            manager.alive(parts.iter().all(|part| part.beat.is_some()));
        }
        thread::sleep(INTERVAL);
    }
    manager.stopping();
    stop_all(parts);
    Ok(())
}

/// Ends this process, and with it all parts, because it hangs. Does not wait for the log, which may be what it hangs in.
fn end_hanging() {
    thread::spawn(|| error!(seconds = OWN_TIMEOUT.as_secs(), "the supervisor hangs; ending the monitor"));
    thread::sleep(Duration::from_secs(1));
    std::process::abort();
}

/// Lets the parts open as many files as the operator allows: two of them keep files of each container open.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        debug!(%error, "cannot raise the limit of open files");
    }
}

/// What the parts inherit.
struct Shared {
    settings: Settings,
    listener: TcpListener,
    snapshots: Mailbox<Publication>,
    snapshots_reader: Reader<Publication>,
    /// Containers that request files.
    requests: Mailbox<Vec<ContainerState>>,
    requests_reader: Reader<Vec<ContainerState>>,
    statuses: Mailbox<Status>,
    statuses_reader: Reader<Status>,
    credentials: Reader<Credentials>,
}

impl Shared {
    /// Creates what the parts inherit.
    fn new(settings: Settings, listener: TcpListener, credentials: Reader<Credentials>) -> io::Result<Self> {
        let (snapshots, requests, statuses) = (Mailbox::create()?, Mailbox::create()?, Mailbox::create()?);
        Ok(Self {
            settings,
            listener,
            snapshots_reader: snapshots.reader()?,
            snapshots,
            requests_reader: requests.reader()?,
            requests,
            statuses_reader: statuses.reader()?,
            statuses,
            credentials,
        })
    }

    /// Starts a part with the descriptors that it expects.
    fn start(&self, part: Part) -> io::Result<(Child, Monitor)> {
        let (pulse, monitor) = Pulse::pair()?;
        let more: &[BorrowedFd<'_>] = match part {
            Part::Enforce => &[self.snapshots.as_fd(), self.requests.as_fd()],
            Part::Files => &[self.requests_reader.as_fd()],
            Part::Http => &[self.snapshots_reader.as_fd(), self.statuses_reader.as_fd(), self.credentials.as_fd(), self.listener.as_fd()],
            Part::Arbiter | Part::Writer => &[],
        };
        let descriptors = [&[pulse.as_fd()], more].concat();
        Ok((launch::start(part, &self.settings, None, &descriptors)?, monitor))
    }

    /// Tells the HTTP part how the parts are.
    fn report(&self, parts: &[Supervised]) {
        let status = |part: &Supervised| PartStatus { name: part.part.name().to_owned(), beat: part.beat, restarts: part.restarts };
        if let Err(error) = self.statuses.write(&Status { reported: uptime(), parts: parts.iter().map(status).collect() }) {
            debug!(%error, "cannot report the state of the parts");
        }
    }
}

/// Credentials of the HTTP part, which cannot read their files itself.
struct Protection {
    files: CredentialFiles,
    mailbox: Mailbox<Credentials>,
    current: Credentials,
    /// Last error.
    error: Option<String>,
    read: Instant,
}

impl Protection {
    /// Reads the credentials for the first time.
    fn new(files: CredentialFiles) -> io::Result<Self> {
        let current = files.load().map_err(io::Error::other)?;
        let mailbox = Mailbox::create()?;
        mailbox.write(&current)?;
        Ok(Self { files, mailbox, current, error: None, read: Instant::now() })
    }

    /// Hands on files that have changed. Those that are malformed are not used.
    fn refresh(&mut self) {
        if self.read.elapsed() < CREDENTIALS_INTERVAL {
            return;
        }
        self.read = Instant::now();
        let changed = self.files.load().and_then(|found| {
            if found != self.current {
                self.mailbox.write(&found).map_err(|error| error.to_string())?;
                info!("the certificate or the token has changed");
                self.current = found;
            }
            Ok(())
        });
        if let Err(error) = &changed
            && self.error.as_ref() != Some(error)
        {
            warn!(error, "keeping the former certificate and token");
        }
        self.error = changed.err();
    }
}

/// A part, whether it runs or not.
struct Supervised {
    part: Part,
    running: Option<Running>,
    /// Time of the last beat of this incarnation.
    beat: Option<Duration>,
    restarts: u64,
    back_off: Duration,
    /// Time of the next start.
    next: Instant,
}

/// One incarnation of a part.
struct Running {
    child: Child,
    monitor: Monitor,
    started: Instant,
    /// Time of its last beat, else of its start.
    last: Instant,
    /// Whether it was killed because it hung.
    is_killed: bool,
}

impl Supervised {
    /// Returns a part that is due to be started.
    fn new(part: Part) -> Self {
        Self { part, running: None, beat: None, restarts: 0, back_off: MIN_BACK_OFF, next: Instant::now() }
    }

    /// Starts the part if it does not run, and kills it if it hangs.
    fn look(&mut self, shared: &Shared) {
        let Some(running) = &mut self.running else {
            if self.next <= Instant::now() {
                self.start(shared);
            }
            return;
        };
        if running.monitor.has_beaten() {
            (running.last, self.beat) = (Instant::now(), Some(uptime()));
        }
        match running.child.try_wait() {
            Ok(Some(status)) => {
                warn!(part = self.part.name(), %status, "part has ended; starting it again");
                if running.started.elapsed() > MAX_BACK_OFF {
                    self.back_off = MIN_BACK_OFF;
                }
                self.running = None;
                self.restarts += 1;
                self.postpone();
            }
            Ok(None) => self.kill_if_hung(),
            Err(error) => debug!(part = self.part.name(), %error, "cannot look at part"),
        }
    }

    /// Starts the part, or tries again later.
    fn start(&mut self, shared: &Shared) {
        match shared.start(self.part) {
            Ok((child, monitor)) => {
                debug!(part = self.part.name(), pid = child.id(), "started part");
                let now = Instant::now();
                self.running = Some(Running { child, monitor, started: now, last: now, is_killed: false });
                self.beat = None;
            }
            Err(error) => {
                error!(part = self.part.name(), %error, "cannot start part");
                self.postpone();
            }
        }
    }

    /// Sets the time of the next start.
    fn postpone(&mut self) {
        self.next = Instant::now() + self.back_off;
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
    }

    /// Kills the part if it has not beaten for too long.
    fn kill_if_hung(&mut self) {
        let Some(running) = &mut self.running else { return };
        let timeout = if self.beat.is_some() { BEAT_TIMEOUT } else { START_TIMEOUT };
        if running.is_killed || running.last.elapsed() < timeout {
            return;
        }
        running.is_killed = true;
        match running.child.kill() {
            Ok(()) => error!(part = self.part.name(), seconds = timeout.as_secs(), "part hangs; killed it"),
            Err(error) => error!(part = self.part.name(), %error, "part hangs, and cannot be killed"),
        }
    }
}

/// Ends all parts. They have [`STOP_TIMEOUT`] to complete what they do.
fn stop_all(parts: Vec<Supervised>) {
    let mut children: Vec<(Part, Child)> = parts.into_iter().filter_map(|part| Some((part.part, part.running?.child))).collect();
    for (part, child) in &children {
        if let Err(error) = launch::signal(child, Signal::TERM) {
            debug!(part = part.name(), %error, "cannot stop part");
        }
    }
    let end = Instant::now() + STOP_TIMEOUT;
    while Instant::now() < end && !children.is_empty() {
        children.retain_mut(|(_, child)| !matches!(child.try_wait(), Ok(Some(_))));
        thread::sleep(INTERVAL / 10);
    }
    for (part, mut child) in children {
        info!(part = part.name(), "part did not end; killing it");
        let _ = child.kill();
    }
}
