//! State that the page asks for, from one sample after the other.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::time::Duration;

use super::events::{Events, Key, Kind};
use super::history::{Counters, Point, SLOT, SLOTS, Series, slot};
use super::rows;
use super::table::{Table, push_list};
use crate::metrics::Tally;
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};
use crate::violations;

/// Shortest time between two updates.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Shares of GPUs that are kept. Further ones are only counted.
const MAX_SHARES: usize = 10_000;
/// Histories that one request gets at most.
const MAX_ASKED: usize = 100;
/// Slots of the shortest history that is drawn: ten minutes.
const MIN_SPAN: usize = 60;

/// Directory name and creation time of a container, and UUID of a GPU. GPUs themselves have no container.
type Subject = (String, u64, String);

/// What is remembered of a subject.
#[derive(Debug)]
struct Memory {
    number: u64,
    series: Series,
    counters: Counters,
    refused: u64,
}

/// State of the page.
#[derive(Debug, Default)]
pub struct State {
    /// Number that differs from those of former incarnations.
    epoch: u64,
    version: u64,
    /// Time of the first update, in seconds since 1970.
    begun: f64,
    /// Time of the sample that was taken over last, by the machine's monotonic clock.
    sampled: Duration,
    node: String,
    nvml_error: Option<String>,
    left_out: usize,
    last_number: u64,
    known: HashMap<Subject, Memory>,
    tallies: HashMap<(String, u64), Tally>,
    events: Events,
    gpus: Table,
    shares: Table,
    event_rows: Table,
}

impl State {
    /// Returns the state before the first sample. `epoch` differs from those of former incarnations.
    #[must_use]
    pub fn new(node: &str, epoch: u64) -> Self {
        Self { node: rows::bounded(node), epoch, ..Self::default() }
    }

    /// Returns the time of the sample that was taken over last, by the machine's monotonic clock.
    #[must_use]
    pub fn sampled(&self) -> Duration {
        self.sampled
    }

    /// Returns whether the histories lack a point for the slot of a time by the machine's monotonic clock.
    #[must_use]
    pub fn lacks_point(&self, now: Duration) -> bool {
        slot(now) != slot(self.sampled)
    }

    /// Takes over a sample. `tallies` has the tallies of violations by the container's directory name.
    pub fn update(&mut self, sampled: Duration, snapshot: &Snapshot, tallies: &HashMap<String, Tally>) {
        if self.version == 0 {
            self.begun = snapshot.time;
        }
        self.version += 1;
        let passed = sampled.saturating_sub(self.sampled);
        self.sampled = sampled;
        self.nvml_error.clone_from(&snapshot.nvml_error);
        let mut known = std::mem::take(&mut self.known);
        let gpus: Vec<(u64, String)> = snapshot.gpus.iter().map(|gpu| self.update_gpu(gpu, passed, &mut known)).collect();
        let mut shares = Vec::new();
        self.left_out = 0;
        for container in &snapshot.containers {
            let tally = tallies.get(&container.dir_name).copied().unwrap_or_default();
            self.count_violations(container, tally, snapshot.time);
            let all = container.gpus.iter().map(Some).chain(container.gpus.is_empty().then_some(None));
            for share in all {
                if shares.len() == MAX_SHARES {
                    self.left_out += 1;
                    continue;
                }
                shares.push(self.update_share(container, share, tally, snapshot, &mut known));
            }
        }
        let live: HashSet<(&str, u64)> =
            snapshot.containers.iter().map(|container| (container.dir_name.as_str(), container.created)).collect();
        self.tallies.retain(|(dir_name, created), _| live.contains(&(dir_name.as_str(), *created)));
        self.events.forget(snapshot.time);
        let index = |uuid: &str| snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.index);
        let events = self.events.all().map(|(key, event)| (event.number, rows::event(key, event, index(&key.2))));
        self.event_rows.replace(self.version, events);
        self.gpus.replace(self.version, gpus);
        self.shares.replace(self.version, shares);
    }

    /// Takes over a subject's history from `known` and adds the current figures. Returns the subject's number, and the refusals and the
    /// time waited since the last look.
    fn remember(
        &mut self,
        subject: Subject,
        memory: u64,
        (counters, refused): (Counters, u64),
        is_new: bool,
        known: &mut HashMap<Subject, Memory>,
    ) -> (u64, u64, u64) {
        let begin = |number| {
            // What happened before the first look is not known to be recent, unless the container is younger.
            let before = if is_new { Counters::default() } else { counters };
            Memory { number, series: Series::new(self.sampled, counters), counters: before, refused: if is_new { 0 } else { refused } }
        };
        let mut found = known.remove(&subject).unwrap_or_else(|| {
            self.last_number += 1;
            begin(self.last_number)
        });
        found.series.record(self.sampled, memory, counters);
        let refused_since = refused.saturating_sub(found.refused);
        let waited_since = counters.waited_ns.saturating_sub(found.counters.waited_ns);
        (found.counters, found.refused) = (counters, refused);
        let number = found.number;
        self.known.insert(subject, found);
        (number, refused_since, waited_since)
    }

    fn update_gpu(&mut self, gpu: &Gpu, passed: Duration, known: &mut HashMap<Subject, Memory>) -> (u64, String) {
        let subject = (String::new(), 0, gpu.uuid.clone());
        let mut counters = known.get(&subject).map(|memory| memory.counters).unwrap_or_default();
        if let Some(percent) = gpu.utilization {
            let passed_ns = passed.min(SLOT).as_nanos() as u64;
            counters.used_ns += passed_ns / 100 * u64::from(percent.min(100));
            counters.over_ns += passed_ns;
        }
        let (number, ..) = self.remember(subject, gpu.memory_used.unwrap_or(0), (counters, 0), false, known);
        (number, rows::gpu(number, gpu))
    }

    fn update_share(
        &mut self,
        container: &ContainerState,
        share: Option<&Share>,
        tally: Tally,
        snapshot: &Snapshot,
        known: &mut HashMap<Subject, Memory>,
    ) -> (u64, String) {
        let uuid = share.map(|share| share.uuid.clone()).unwrap_or_default();
        let index = snapshot.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.index);
        let counters = share.map_or_else(Counters::default, |share| counters(share, self.sampled));
        let (memory, refused) = share.map_or((0, 0), |share| (rows::memory(share), share.refused));
        let subject = (container.dir_name.clone(), container.created, uuid);
        let (number, refused, waited) = self.remember(subject.clone(), memory, (counters, refused), self.is_new(container), known);
        for (kind, count) in [(Kind::Refused, refused), (Kind::HeldBack, waited)] {
            self.count(subject.clone(), kind, container, snapshot.time, count);
        }
        (number, rows::share(number, container, share, index, tally))
    }

    /// Returns whether a container was created after this state. Creation times have whole seconds.
    fn is_new(&self, container: &ContainerState) -> bool {
        container.created as f64 >= self.begun.floor()
    }

    /// Counts what the monitor found and did since the last sample.
    fn count_violations(&mut self, container: &ContainerState, tally: Tally, now: f64) {
        let before = self.tallies.insert((container.dir_name.clone(), container.created), tally);
        let before = before.unwrap_or_else(|| if self.is_new(container) { Tally::default() } else { tally });
        let subject = (container.dir_name.clone(), container.created, String::new());
        for (kind, (found, known)) in violations::Kind::ALL.into_iter().zip(tally.found.into_iter().zip(before.found)) {
            self.count(subject.clone(), Kind::Violation(kind), container, now, found.saturating_sub(known));
        }
        let lasting = violations::Kind::ALL.into_iter().zip(tally.lasting).filter(|(_, count)| *count > 0);
        for (kind, _) in lasting {
            let (dir_name, created, uuid) = subject.clone();
            self.events.go_on(&(dir_name, created, uuid, Kind::Violation(kind)), now);
        }
        self.count(subject, Kind::Ended, container, now, tally.ended.saturating_sub(before.ended));
    }

    fn count(&mut self, (dir_name, created, uuid): Subject, kind: Kind, container: &ContainerState, now: f64, count: u64) {
        let key: Key = (dir_name, created, uuid, kind);
        self.events.count(key, &rows::bounded(&container.name()), now, count);
    }

    /// Returns as JSON what changed since the version that a request names as `since=EPOCH.VERSION`; everything if it names none or that of
    /// a former incarnation. `now` is the time by the machine's monotonic clock, `unix_time` the same in seconds since 1970.
    #[must_use]
    pub fn json(&self, query: &str, now: Duration, unix_time: f64) -> String {
        let since = parameter(query, "since").and_then(|since| since.split_once('.'));
        let same = since.filter(|(epoch, _)| epoch.parse() == Ok(self.epoch)).and_then(|(_, version)| version.parse().ok());
        let since: u64 = same.filter(|version| *version <= self.version).unwrap_or(0);
        let head = serde_json::json!({
            "version": format!("{}.{}", self.epoch, self.version),
            "now": unix_time,
            // Before the first sample there is none.
            "age": (self.version > 0).then(|| now.saturating_sub(self.sampled).as_secs_f64()),
            "node": self.node,
            "nvml_error": self.nvml_error,
            "left_out": self.left_out,
            "span": self.span() as u64 * SLOT.as_secs(),
        });
        let mut text = head.to_string();
        text.pop();
        for (name, table) in [("gpus", &self.gpus), ("shares", &self.shares), ("events", &self.event_rows)] {
            // Writing into a string does not fail.
            let _ = write!(text, ",\"{name}\":");
            table.write(since, &mut text);
        }
        text.push('}');
        text
    }

    /// Returns as JSON the histories of the rows that a request names as `ids=ID,ID…`, with `points=COUNT` points each.
    #[must_use]
    pub fn history_json(&self, query: &str) -> String {
        let asked: HashSet<u64> =
            parameter(query, "ids").unwrap_or_default().split(',').take(MAX_ASKED).filter_map(|id| id.parse().ok()).collect();
        let points = parameter(query, "points").and_then(|count| count.parse().ok()).unwrap_or(MIN_SPAN).clamp(1, SLOTS);
        let slots = self.span();
        let found = self.known.values().filter(|memory| asked.contains(&memory.number));
        let histories: Vec<String> = found
            .map(|memory| format!("\"{}\":{}", memory.number, series_json(&memory.series.last(self.sampled, slots, points))))
            .collect();
        let mut text = format!("{{\"span\":{},\"of\":{{", slots as u64 * SLOT.as_secs());
        push_list(&mut text, histories.iter().map(String::as_str));
        text + "}}"
    }

    /// Returns the number of slots that histories are drawn over: that of the longest one.
    fn span(&self) -> usize {
        self.known.values().map(|memory| memory.series.span()).max().unwrap_or(0).clamp(MIN_SPAN, SLOTS)
    }
}

/// Returns the counters of a share: of charged time if there is a limit, else of what NVML saw.
fn counters(share: &Share, sampled: Duration) -> Counters {
    let (used_ns, over_ns) = match share.cores {
        Some(_) => (share.used_ns, sampled.as_nanos() as u64),
        None => (share.observed_ns.unwrap_or(0), share.observed_over_ns),
    };
    Counters { used_ns, over_ns, is_charged: share.cores.is_some(), waited_ns: share.throttled_ns }
}

/// Returns the value of a parameter of a query.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Returns points as JSON: one array for each figure. Memory in bytes, time and waits in percent.
fn series_json(points: &[Option<Point>]) -> String {
    let figures = |figure: fn(&Point) -> Option<f64>| points.iter().map(|point| point.as_ref().and_then(figure)).collect::<Vec<_>>();
    serde_json::json!({
        "memory": figures(|point| Some(point.memory as f64)),
        "time": figures(|point| point.time.map(|percent| (f64::from(percent) * 10.0).round() / 10.0)),
        "waits": figures(|point| Some(f64::from(point.waits).round())),
    })
    .to_string()
}
