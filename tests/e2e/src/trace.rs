//! Checks a trace strictly against the published Trace Event Format, and against Perfetto's importer where that is installed.

mod perfetto;

use std::collections::{HashMap, HashSet};

use perfetto::Imported;
use serde_json::{Map, Value};

/// A valid trace.
#[derive(Debug)]
pub struct Trace(Vec<Map<String, Value>>);

/// Lowest number of the GPU's tracks.
const TRACKS: u64 = 0x4000_0000;

fn text<'a>(event: &'a Map<String, Value>, key: &str) -> &'a str {
    event.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("{key}: expected a string: {event:?}"))
}

fn integer(event: &Map<String, Value>, key: &str) -> u64 {
    event.get(key).and_then(Value::as_u64).unwrap_or_else(|| panic!("{key}: expected an integer: {event:?}"))
}

fn number(event: &Map<String, Value>, key: &str) -> f64 {
    let value = event.get(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("{key}: expected a number: {event:?}"));
    assert!(value.is_finite() && value >= 0.0, "{key}: {event:?}");
    value
}

impl Trace {
    /// Parses and checks a trace in the array form.
    ///
    /// # Panics
    /// If the trace is invalid: a required field is missing or of another type, an arrow has one end only, slices of one GPU track
    /// overlap, or a track has no name; or if Perfetto reads something else from it, or reports a fault.
    #[must_use]
    pub fn check(json: &str) -> Self {
        let events: Vec<Map<String, Value>> =
            serde_json::from_str(json).unwrap_or_else(|error| panic!("expected a JSON array of objects: {error}"));
        let mut arrows: HashMap<u64, Vec<&str>> = HashMap::new();
        let mut named: HashSet<(u64, u64)> = HashSet::new();
        let mut tracks: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
        for event in &events {
            let (phase, thread) = (text(event, "ph"), (integer(event, "pid"), integer(event, "tid")));
            let (_, ts) = (text(event, "name"), number(event, "ts"));
            assert!(event.get("args").is_none_or(Value::is_object), "{event:?}");
            match phase {
                "X" => {
                    let took = number(event, "dur");
                    let _ = text(event, "cat");
                    if thread.1 >= TRACKS {
                        tracks.entry(thread).or_default().push((ts, ts + took));
                    }
                }
                "i" => assert!(["g", "p", "t"].contains(&text(event, "s"))),
                "M" if text(event, "name") == "process_labels" => assert!(event["args"]["labels"].is_string(), "{event:?}"),
                "M" => {
                    let name = event["args"]["name"].as_str();
                    assert!(["process_name", "thread_name"].contains(&text(event, "name")) && name.is_some(), "{event:?}");
                    named.insert(thread);
                }
                "s" => arrows.entry(integer(event, "id")).or_default().push("s"),
                "f" => {
                    assert_eq!(text(event, "bp"), "e");
                    arrows.entry(integer(event, "id")).or_default().push("f");
                }
                other => panic!("unexpected phase: {other}"),
            }
        }
        assert!(arrows.values().all(|ends| ends == &["s", "f"]), "an arrow needs two ends");
        for (track, slices) in &mut tracks {
            assert!(named.contains(track), "{track:?} has no name");
            slices.sort_by(|a, b| a.0.total_cmp(&b.0));
            let overlap = slices.windows(2).find(|pair| pair[1].0 < pair[0].1 - 0.001);
            assert_eq!(overlap, None, "slices of one stream overlap");
        }
        let this = Self(events);
        // A trace that is still being written has no end yet.
        for written in [json, json.trim_end_matches("\n]\n")] {
            if let Some(imported) = Imported::of(written) {
                imported.assert_equals(&this.expected());
            }
        }
        this
    }

    /// Returns what Perfetto should read.
    fn expected(&self) -> Imported {
        let mut expected = Imported::default();
        let nanos = |event: &Map<String, Value>, key: &str| (number(event, key) * 1000.0).round() as u64;
        let mut slices = HashMap::new();
        for event in &self.0 {
            let (pid, thread, begin) = (integer(event, "pid"), integer(event, "tid"), nanos(event, "ts"));
            let words = |key: &str| text(event, key).to_owned();
            let label = || event["args"]["name"].as_str().unwrap_or_default().to_owned();
            match (text(event, "ph"), text(event, "name")) {
                ("X" | "i", _) => {
                    let took = if event.contains_key("dur") { nanos(event, "dur") } else { 0 };
                    slices.insert((pid, thread, begin), (words("name"), words("cat")));
                    expected.slices.push((pid, thread, words("name"), words("cat"), begin, took));
                }
                ("M", "process_name") => expected.processes.push((pid, label())),
                ("M", "thread_name") => expected.threads.push((pid, thread, label())),
                _ => {}
            }
        }
        for ends in self.0.iter().filter(|event| event.contains_key("id")).collect::<Vec<_>>().chunks_exact(2) {
            let [from, to] = [ends[0], ends[1]].map(|end| (integer(end, "pid"), integer(end, "tid"), nanos(end, "ts")));
            expected.arrows.push((from.2, to.2, slices[&from].0.clone(), slices[&to].1.clone()));
        }
        expected
    }

    fn slices(&self, gpu: bool) -> impl Iterator<Item = &Map<String, Value>> {
        self.0.iter().filter(move |event| event["ph"] == "X" && (integer(event, "tid") >= TRACKS) == gpu)
    }

    /// Returns the number of slices on the GPU with this category.
    #[must_use]
    pub fn on_gpu(&self, category: &str) -> u64 {
        self.slices(true).filter(|event| event["cat"] == category).count() as u64
    }

    /// Returns the number of kernels in the graphs that ran.
    #[must_use]
    pub fn kernels_in_graphs(&self) -> u64 {
        self.slices(true).filter(|event| event["cat"] == "graph").filter_map(|event| event["args"]["kernels"].as_u64()).sum()
    }

    /// Returns the durations of the kernels with this name, in microseconds.
    #[must_use]
    pub fn kernels_called(&self, name: &str) -> Vec<f64> {
        self.slices(true).filter(|event| event["cat"] == "kernel" && event["name"] == name).map(|event| number(event, "dur")).collect()
    }

    /// Returns the number of calls of a function that did something.
    #[must_use]
    pub fn calls(&self, name: &str) -> u64 {
        let did = |event: &&Map<String, Value>| event["args"].get("failed").is_none() && event["args"].get("captured").is_none();
        self.slices(false).filter(|event| event["name"] == name).filter(did).count() as u64
    }

    /// Returns the number of slices with this name on the host, including failed calls.
    #[must_use]
    pub fn on_host(&self, name: &str) -> u64 {
        self.slices(false).filter(|event| event["name"] == name).count() as u64
    }

    /// Returns the number of captured calls.
    #[must_use]
    pub fn captured(&self) -> u64 {
        self.slices(false).filter(|event| event["args"].get("captured").is_some()).count() as u64
    }
}
