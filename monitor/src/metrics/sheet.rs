//! What the metrics of both vocabularies are written with.

use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts, Registry};

use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};

/// Metrics that are written once and read once.
#[derive(Default)]
pub struct Sheet(Registry);

impl Sheet {
    pub fn gauge(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let vec = GaugeVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    pub fn counter(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<CounterVec> {
        let vec = CounterVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    pub fn owners(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }
}

/// Every share with its container and its place among that one's GPUs.
pub fn shares(snapshot: &Snapshot) -> impl Iterator<Item = (&ContainerState, usize, &Share)> {
    snapshot.containers.iter().flat_map(|container| container.gpus.iter().enumerate().map(move |(nth, share)| (container, nth, share)))
}

/// Namespace, pod and container; outside of Kubernetes there is only the container, by its name or id.
pub fn names(container: &ContainerState) -> [&str; 3] {
    [
        container.namespace.as_deref().unwrap_or_default(),
        container.pod.as_deref().unwrap_or_default(),
        container.container.as_deref().unwrap_or(&container.id),
    ]
}

/// The shares of one GPU.
pub fn of_gpu<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> impl Iterator<Item = &'a Share> {
    shares(snapshot).map(|(_, _, share)| share).filter(|share| share.uuid == gpu.uuid)
}
