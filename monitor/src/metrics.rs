//! What is known, as Prometheus metrics: under HAMi's names with its labels and units, and under ours for what it lacks.

use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, Encoder, GaugeVec, Opts, Registry, TextEncoder};

use crate::enforce::Kind;
use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};

mod hami;
mod own;

/// What HAMi's vocabulary is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// What HAMi's scheduler tells of a node, for its dashboard. Not wanted where that scheduler runs itself.
    pub scheduler: bool,
    /// HAMi's names from before 2.9.
    pub legacy: bool,
}

/// What has been done about violations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Violations found, by [`Kind::ALL`].
    pub found: [u64; 2],
    /// Violations that last, by [`Kind::ALL`].
    pub lasting: [u64; 2],
    /// Processes ended.
    pub ended: u64,
}

impl Tally {
    /// Where a kind is counted.
    #[must_use]
    pub fn place(kind: Kind) -> usize {
        Kind::ALL.iter().position(|known| *known == kind).unwrap_or(0)
    }
}

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything at this moment, in Prometheus's text format. `tally` gives a container's tally, by its place.
///
/// # Errors
/// Two metrics contradict each other, which tests rule out.
pub fn text(snapshot: &Snapshot, node: &str, dialect: Dialect, tally: impl Fn(&str) -> Tally) -> prometheus::Result<String> {
    let mut sheet = Sheet::default();
    own::write(&mut sheet, snapshot, &tally)?;
    hami::write(&mut sheet, snapshot, node, dialect)?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&sheet.owners(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Metrics that are written once and read once.
#[derive(Default)]
struct Sheet(Registry);

impl Sheet {
    fn gauge(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let vec = GaugeVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    fn counter(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<CounterVec> {
        let vec = CounterVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    fn owners(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }
}

/// Every share with its container and its place among that one's GPUs.
fn shares(snapshot: &Snapshot) -> impl Iterator<Item = (&ContainerState, usize, &Share)> {
    snapshot.containers.iter().flat_map(|container| container.gpus.iter().enumerate().map(move |(nth, share)| (container, nth, share)))
}

/// Namespace, pod and container; outside of Kubernetes there is only the container, by its name or id.
fn names(container: &ContainerState) -> [&str; 3] {
    [
        container.namespace.as_deref().unwrap_or_default(),
        container.pod.as_deref().unwrap_or_default(),
        container.container.as_deref().unwrap_or(&container.id),
    ]
}

/// The shares of one GPU.
fn of_gpu<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> impl Iterator<Item = &'a Share> {
    shares(snapshot).map(|(_, _, share)| share).filter(|share| share.uuid == gpu.uuid)
}

#[cfg(test)]
mod tests;
