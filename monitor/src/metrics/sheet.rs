//! Helpers for both sets of metrics.

use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts, Registry};

use crate::snapshot::{ContainerState, Gpu, Share, Snapshot};

/// Registry of the metrics of one response.
#[derive(Default)]
pub struct Sheet(Registry);

impl Sheet {
    /// Registers a gauge.
    pub fn gauge(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let vec = GaugeVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    /// Registers a counter.
    pub fn counter(&mut self, opts: Opts, labels: &[&str]) -> prometheus::Result<CounterVec> {
        let vec = CounterVec::new(opts, labels)?;
        self.0.register(Box::new(vec.clone()))?;
        Ok(vec)
    }

    /// Returns all registered metrics.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }
}

/// Returns every share with its container and its index in the container.
pub fn shares(snapshot: &Snapshot) -> impl Iterator<Item = (&ContainerState, usize, &Share)> {
    snapshot.containers.iter().flat_map(|container| container.gpus.iter().enumerate().map(move |(nth, share)| (container, nth, share)))
}

/// Returns namespace, pod and container. Outside Kubernetes the first two are empty, and the ID stands for an unnamed container.
pub fn names(container: &ContainerState) -> [&str; 3] {
    [
        container.namespace.as_deref().unwrap_or_default(),
        container.pod.as_deref().unwrap_or_default(),
        container.container.as_deref().unwrap_or(&container.id),
    ]
}

/// Returns the shares of one GPU.
pub fn of_gpu<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> impl Iterator<Item = &'a Share> {
    shares(snapshot).map(|(_, _, share)| share).filter(|share| share.uuid == gpu.uuid)
}
