//! Part that answers HTTP from the latest sample. It has no privileges, and the least it needs of everything else: whoever breaks or exhausts
//! it has won nothing.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use rustix::process::{Resource, Rlimit, setrlimit};
use tracing::{debug, warn};

use super::launch::Assignment;
use super::mailbox::Reader;
use super::publication::{Publication, Status, uptime};
use super::pulse::Pulse;
use crate::capabilities::{self, Identity};
use crate::http::{self, Credentials, Guard, Page, Pages};
use crate::metrics;
use crate::settings::Settings;
use crate::web;

/// Maximum number of descriptors: connections and a few more.
const MAX_DESCRIPTORS: u64 = http::MAX_CONNECTIONS as u64 + 64;
/// Maximum size of the address space in bytes.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// Age above which a sample or the beat of a part counts as stale.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Runs without end.
///
/// # Errors
/// The part was not started by the supervisor, or the socket cannot be used.
pub fn run(mut assignment: Assignment) -> io::Result<()> {
    let [pulse, snapshots, status, credentials, listener] = assignment.descriptors::<5>()?;
    renounce()?;
    assignment.follow_parent()?;
    let mut pulse = Pulse::from(pulse);
    let pages = Arc::new(Exposition::new(assignment.settings, [snapshots, status, credentials])?);
    let history = Arc::clone(&pages);
    let Err(error) = http::run(listener.into(), pages, move || {
        history.record();
        pulse.beat();
    });
    Err(error)
}

/// Gives up all rights, for good.
fn renounce() -> io::Result<()> {
    let limit = |value| Rlimit { current: Some(value), maximum: Some(value) };
    for (resource, value) in [(Resource::Nofile, MAX_DESCRIPTORS), (Resource::As, MAX_ADDRESS_SPACE), (Resource::Core, 0)] {
        if let Err(error) = setrlimit(resource, limit(value)) {
            debug!(?resource, value, %error, "cannot lower a limit");
        }
    }
    if !rustix::process::geteuid().is_root() {
        capabilities::restrict_part(&[]);
        return Ok(());
    }
    // Root may lack CAP_SETUID, in a container or under an older unit.
    Identity::nobody().assume().or_else(|error| {
        warn!(%error, "cannot become nobody to answer HTTP: expected CAP_SETUID and CAP_SETGID");
        capabilities::restrict_part(&[]);
        Ok(())
    })
}

/// Latest results as pages.
struct Exposition {
    settings: Settings,
    latest: Mutex<Latest>,
    protection: Mutex<Protection>,
}

/// Credentials of the operator, which may change at any time.
struct Protection {
    credentials: Reader<Credentials>,
    guard: Guard,
}

impl Protection {
    /// Takes over new credentials, if there are some. Returns whether there are.
    fn update(&mut self) -> bool {
        let Some(credentials) = self.credentials.read() else { return false };
        match credentials.guard() {
            Ok(guard) => self.guard = guard,
            Err(error) => warn!(error, "keeping the former certificate and token"),
        }
        true
    }
}

/// What the other parts and the supervisor told last.
struct Latest {
    snapshots: Reader<Publication>,
    statuses: Reader<Status>,
    publication: Publication,
    status: Status,
    /// The metrics of `publication` and `status`.
    metrics: Option<Page>,
    /// State of the web page.
    web: web::State,
}

impl Exposition {
    /// Returns the pages, once there are credentials.
    fn new(settings: Settings, [snapshots, statuses, credentials]: [OwnedFd; 3]) -> io::Result<Self> {
        let (publication, status) = (Publication::default(), Status::default());
        let web = web::State::new(&settings.node, uptime().as_millis() as u64);
        let latest = Latest { snapshots: snapshots.into(), statuses: statuses.into(), publication, status, metrics: None, web };
        let mut protection = Protection { credentials: credentials.into(), guard: Guard::default() };
        if !protection.update() {
            return Err(io::Error::other("expected the credentials of the operator"));
        }
        Ok(Self { settings, latest: Mutex::new(latest), protection: Mutex::new(protection) })
    }

    /// Takes over a sample for the history of the web page, also while no page asks.
    fn record(&self) {
        self.with_web(|web| web.lacks_point(uptime()), |_| ());
    }

    /// Calls `then` with the state of the web page. Takes over the latest sample first if `is_due` says so.
    fn with_web<T>(&self, is_due: impl FnOnce(&web::State) -> bool, then: impl FnOnce(&web::State) -> T) -> T {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if is_due(&latest.web) {
            latest.update();
            latest.update_web();
        }
        then(&latest.web)
    }

    /// Calls `then` with what is latest now.
    fn with_latest<T>(&self, then: impl FnOnce(&mut Latest) -> T) -> T {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.update();
        then(&mut latest)
    }
}

impl Latest {
    /// Reads what is new.
    fn update(&mut self) {
        if let Some(publication) = self.snapshots.read() {
            (self.publication, self.metrics) = (publication, None);
        }
        if let Some(status) = self.statuses.read() {
            (self.status, self.metrics) = (status, None);
        }
    }

    /// Hands the sample to the web page, if it is a new one.
    fn update_web(&mut self) {
        let Publication { sampled, snapshot, tallies } = &self.publication;
        if *sampled != self.web.sampled() {
            self.web.update(*sampled, snapshot, tallies);
        }
    }

    /// Returns the metrics.
    fn render(&self, settings: &Settings) -> Page {
        let tally = |dir_name: &str| self.publication.tallies.get(dir_name).copied().unwrap_or_default();
        let restarts: Vec<(&str, u64)> = self.status.parts.iter().map(|part| (part.name.as_str(), part.restarts)).collect();
        let text = metrics::text(&self.publication.snapshot, &settings.node, settings.dialect, &restarts, tally);
        Page { status: StatusCode::OK, content_type: metrics::CONTENT_TYPE, text: text.into() }
    }

    /// Returns what is stale, one line each.
    fn stale(&self, now: Duration) -> String {
        let is_old = |at: Duration| now.saturating_sub(at) >= MAX_AGE;
        let mut found = Vec::new();
        if self.publication.sampled.is_zero() || is_old(self.publication.sampled) {
            found.push("enforce: the last sample is stale".to_owned());
        }
        if is_old(self.status.reported) {
            found.push("supervisor: the last report is stale".to_owned());
        }
        for part in self.status.parts.iter().filter(|part| part.name != "enforce" && part.beat.is_none_or(is_old)) {
            found.push(format!("{}: the last beat is stale", part.name));
        }
        found.into_iter().map(|line| line + "\n").collect()
    }
}

impl Pages for Exposition {
    fn guard(&self) -> Guard {
        let mut protection = self.protection.lock().unwrap_or_else(PoisonError::into_inner);
        protection.update();
        protection.guard.clone()
    }

    fn metrics(&self) -> Page {
        self.with_latest(|latest| {
            let page = latest.metrics.take().unwrap_or_else(|| latest.render(&self.settings));
            latest.metrics.insert(page).clone()
        })
    }

    fn health(&self) -> Page {
        let stale = self.with_latest(|latest| latest.stale(uptime()));
        if stale.is_empty() { Page::plain(StatusCode::OK, "ok\n") } else { Page::plain(StatusCode::SERVICE_UNAVAILABLE, stale) }
    }

    fn state(&self, query: &str) -> Page {
        let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let is_old = |web: &web::State| uptime().saturating_sub(web.sampled()) >= web::MIN_INTERVAL;
        json(self.with_web(is_old, |web| web.json(query, uptime(), unix_time)))
    }

    fn history(&self, query: &str) -> Page {
        json(self.with_web(|web| web.lacks_point(uptime()), |web| web.history_json(query)))
    }
}

fn json(text: String) -> Page {
    Page { status: StatusCode::OK, content_type: "application/json", text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::Mailbox;
    use super::super::publication::PartStatus;
    use super::*;

    #[test]
    fn health_names_the_parts_that_are_stale() {
        let (snapshots, statuses) = (Mailbox::<Publication>::create().unwrap(), Mailbox::<Status>::create().unwrap());
        let mut latest = Latest {
            snapshots: snapshots.reader().unwrap(),
            statuses: statuses.reader().unwrap(),
            publication: Publication::default(),
            status: Status::default(),
            metrics: None,
            web: web::State::new("node", 1),
        };
        let at = Duration::from_secs;
        assert!(latest.stale(at(100)).contains("enforce: "), "there was no sample yet");
        let part = |name: &str, beat| PartStatus { name: name.to_owned(), beat, restarts: 0 };
        let parts = vec![part("enforce", Some(at(1))), part("arbiter", Some(at(95))), part("files", None)];
        snapshots.write(&Publication { sampled: at(99), ..Publication::default() }).unwrap();
        statuses.write(&Status { reported: at(100), parts }).unwrap();
        latest.update();
        assert_eq!(latest.stale(at(100)), "files: the last beat is stale\n");
        let expected = ["enforce: the last sample", "supervisor: the last report", "arbiter: the last beat", "files: the last beat"];
        let stale = latest.stale(at(110));
        assert!(expected.iter().all(|line| stale.contains(line)) && stale.lines().count() == 4, "{stale}");
    }
}
