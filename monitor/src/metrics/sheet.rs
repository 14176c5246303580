//! The text of one response, in Prometheus's format.
//!
//! With 1,000 containers it has tens of thousands of samples, each with the labels of its container. So these are formatted once.

use std::collections::HashSet;
use std::fmt::Write;

use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};
use crate::text::short_id;

/// Text of the metrics.
#[derive(Debug, Default)]
pub struct Sheet(String);

impl Sheet {
    /// Begins a gauge, whose samples follow.
    pub fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Metric<'a> {
        self.metric(name, help, "gauge")
    }

    /// Begins a counter, whose name ends in `_total` and whose samples follow.
    pub fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Metric<'a> {
        self.metric(name, help, "counter")
    }

    fn metric<'a>(&'a mut self, name: &'a str, help: &str, kind: &str) -> Metric<'a> {
        // Writing into a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { text: &mut self.0, name }
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Metric that is being written.
pub struct Metric<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Metric<'_> {
    /// Writes a sample. No two samples of a metric have the same labels.
    pub fn sample(&mut self, labels: &Labels, value: f64) {
        self.text.push_str(self.name);
        if !labels.0.is_empty() {
            self.text.push('{');
            self.text.push_str(&labels.0);
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Labels of a sample, formatted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(String);

impl Labels {
    /// Formats labels, in the order of their names.
    pub fn new<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut labels: Vec<(&str, &str)> = labels.into_iter().collect();
        labels.sort_unstable_by_key(|(name, _)| *name);
        let mut text = String::new();
        for (name, value) in labels {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(name);
            text.push_str("=\"");
            for letter in value.chars() {
                match letter {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    other => text.push(other),
                }
            }
            text.push('"');
        }
        Self(text)
    }
}

/// Returns every share with its container and the labels that `labels` returns for it and its index in the container. Of several with the same
/// labels only the newest: a restarted container has the names of its predecessor, which may still be listed. Containers are sorted by age.
pub fn labelled(snapshot: &Snapshot, labels: impl Fn(&ContainerState, usize, &Share) -> Labels) -> Vec<(Labels, &ContainerState, &Share)> {
    let all =
        snapshot.containers.iter().flat_map(|container| container.gpus.iter().enumerate().map(move |(nth, share)| (container, nth, share)));
    newest(all.map(|(container, nth, share)| (labels(container, nth, share), container, share)).collect(), |(labels, ..)| labels)
}

/// Returns the items, but of several with the same labels only the last one.
pub fn newest<T>(mut items: Vec<T>, labels: impl Fn(&T) -> &Labels) -> Vec<T> {
    let mut seen = HashSet::new();
    let is_newest: Vec<bool> = items.iter().rev().map(|item| seen.insert(labels(item))).collect();
    let mut is_newest = is_newest.into_iter().rev();
    items.retain(|_| is_newest.next().unwrap_or(true));
    items
}

/// Returns every share.
pub fn shares(snapshot: &Snapshot) -> impl Iterator<Item = &Share> {
    snapshot.containers.iter().flat_map(|container| &container.gpus)
}

/// Returns namespace, pod and container. Outside Kubernetes the first two are empty, and the third is the engine's name, or the ID,
/// shortened.
pub fn names(container: &ContainerState) -> [&str; 3] {
    [
        container.namespace.as_deref().unwrap_or_default(),
        container.pod.as_deref().unwrap_or_default(),
        container.container.as_deref().or(container.engine_name.as_deref()).unwrap_or(short_id(&container.id)),
    ]
}

/// Returns the shares of one GPU.
pub fn of_gpu<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> impl Iterator<Item = &'a Share> {
    shares(snapshot).filter(|share| share.uuid == gpu.uuid)
}
