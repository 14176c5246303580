//! Reference of the metrics, from what the monitor and the kubelet plugin answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vgpu_dra::status::Status;
use vgpu_monitor::metrics::{Dialect, Tally, text};
use vgpu_monitor::snapshot::{ContainerState, Gpu, Share, Snapshot};

use crate::markdown::{cell, table};

/// A metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Returns the page of all metrics.
pub fn page() -> String {
    let of = |scheduler, legacy| metrics(&answer(Dialect { scheduler, legacy }));
    let always = of(false, false);
    let only = |more: BTreeMap<String, Metric>| -> BTreeMap<String, Metric> {
        more.into_iter().filter(|(name, _)| !always.contains_key(name)).collect()
    };
    let (own, hami): (BTreeMap<_, _>, BTreeMap<_, _>) = always.clone().into_iter().partition(|(name, _)| name.starts_with("vgpu_"));
    let sections = [
        ("vgpu monitor", "Always there.", own),
        ("HAMi's node monitor", "Always there, with HAMi's names, labels and units.", hami),
        ("HAMi's scheduler", "For HAMi's dashboard; absent with `--no-scheduler-metrics`.", only(of(true, false))),
        ("HAMi's former names", "With `--legacy-metrics`.", only(of(false, true))),
        ("vgpu-dra", "With `--listen`; the chart sets it.", metrics(&Status::new(Duration::ZERO).metrics())),
    ];
    let mut page = "# Metrics\n\n`vgpu monitor` answers `/metrics` in Prometheus' text format. [Monitoring](../operate/monitoring.md) says which ones \
                    to watch.\n"
        .to_owned();
    for (title, about, metrics) in sections {
        let rows = metrics.into_iter().map(|(name, metric)| {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            vec![format!("`{name}`"), metric.kind, labels.join(", "), cell(&metric.help)]
        });
        page += &format!("\n## {title}\n\n{about}\n\n{}", table(&["metric", "type", "labels", "meaning"], rows));
    }
    page
}

/// Returns the monitor's answer about one container on one GPU, of which everything is known.
fn answer(dialect: Dialect) -> String {
    let uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef".to_owned();
    let gpu = Gpu { uuid: uuid.clone(), memory_used: Some(1), utilization: Some(1), processes_known: true, ..Gpu::default() };
    let share = Share {
        uuid,
        memory_limit: Some(1),
        cores: Some(1),
        held: Some(1),
        first_refusal: Some(1.0),
        utilization: Some(1.0),
        observed: Some(1.0),
        observed_ns: Some(1),
        last_kernel: Some(1.0),
        ..Share::default()
    };
    let container = ContainerState { id: "id".to_owned(), gpus: vec![share], ..ContainerState::default() };
    let snapshot = Snapshot { gpus: vec![gpu], containers: vec![container], ..Snapshot::default() };
    text(&snapshot, "node", dialect, &[("enforce", 0)], |_| Tally::default())
}

/// Parses Prometheus' text format.
fn metrics(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name)) => metrics.entry(name.to_owned()).or_default().help = words.collect::<Vec<_>>().join(" "),
            (Some("#"), Some("TYPE"), Some(name)) => metrics.entry(name.to_owned()).or_default().kind = words.collect(),
            _ => {
                let (name, labels) = line.split_once('{').unwrap_or((line, ""));
                let labels = labels.split("=\"").map(|part| part.rsplit(['{', ',', '"']).next().unwrap_or_default());
                let labels = labels.filter(|label| label.starts_with(|c: char| c.is_ascii_lowercase())).map(str::to_owned);
                let name = name.split(' ').next().unwrap_or_default();
                metrics.entry(name.to_owned()).or_default().labels.extend(labels);
            }
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_type_help_and_labels() {
        let all = metrics("# HELP a_total Some text\n# TYPE a_total counter\na_total{x=\"1, y\",zone=\"v\"} 2\n");
        let labels = ["x", "zone"].map(str::to_owned).into_iter().collect();
        assert_eq!(all["a_total"], Metric { kind: "counter".to_owned(), help: "Some text".to_owned(), labels });
    }
}
