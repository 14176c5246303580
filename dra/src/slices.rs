//! The node's ResourceSlices: the same as what the machine has, and one generation for all of them.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};

use crate::names::DRIVER;

/// Most devices of a slice: what an API server takes where devices have taints.
pub const MAX_DEVICES: usize = 64;

/// Keeps the slices of this node's pool.
pub struct SlicePublisher {
    slices: Api<ResourceSlice>,
    nodes: Api<Node>,
    node: String,
    owner: Option<OwnerReference>,
    written: Option<Published>,
}

/// What was written last, and what the API server made of it: it drops what it has no feature for.
struct Published {
    devices: Vec<Device>,
    versions: Vec<(String, String)>,
    features: Features,
}

/// What the API server keeps of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// That it can be shared (`DRAConsumableCapacity`).
    pub sharing: bool,
    /// Its taints (`DRADeviceTaints`).
    pub taints: bool,
}

impl SlicePublisher {
    /// One for this node.
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self { slices: Api::all(client.clone()), nodes: Api::all(client), node, owner: None, written: None }
    }

    /// The choice of our slices among all.
    #[must_use]
    pub fn selector(node: &str) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={node}")
    }

    /// Makes the slices tell of these devices, and says what the API server keeps of that. The API server is asked for them only if
    /// something else is to be told than last time, or if they may have been `may_have_changed` since: there may be thousands of nodes.
    ///
    /// # Errors
    /// The API server does not answer, or somebody else changes the slices at the same time. It can be tried again at once.
    pub async fn reconcile(&mut self, devices: &[Device], may_have_changed: bool) -> Result<Features, kube::Error> {
        if let Some(written) = self.written.as_ref().filter(|written| !may_have_changed && written.devices == devices) {
            return Ok(written.features);
        }
        let existing = self.existing().await?;
        if let Some(written) = &self.written
            && written.devices == devices
            && written.versions == versions(&existing)
        {
            return Ok(written.features);
        }
        let generation = existing.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        let chunks: Vec<&[Device]> = devices.chunks(MAX_DEVICES).collect();
        let now = if is_current(&existing, devices, chunks.len(), generation) {
            existing
        } else {
            self.write(existing, &chunks, generation + 1).await?
        };
        let any = |has: fn(&Device) -> bool| now.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).any(has);
        let features = Features {
            sharing: devices.is_empty() || any(|device| device.allow_multiple_allocations == Some(true)),
            taints: !devices.iter().any(|device| device.taints.is_some()) || any(|device| device.taints.is_some()),
        };
        self.written = Some(Published { devices: devices.to_vec(), versions: versions(&now), features });
        Ok(features)
    }

    async fn existing(&self) -> Result<Vec<ResourceSlice>, kube::Error> {
        let listed = self.slices.list(&ListParams::default().fields(&Self::selector(&self.node))).await?.items;
        let ours = |slice: &ResourceSlice| slice.spec.driver == DRIVER && slice.spec.pool.name == self.node;
        Ok(listed.into_iter().filter(ours).collect())
    }

    /// The devices that the slices tell of, whoever wrote them, as ones that are there.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn published_devices(&self) -> Result<Vec<Device>, kube::Error> {
        let devices = self.existing().await?.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
        Ok(devices.map(|device| Device { taints: None, ..device }).collect())
    }

    async fn write(
        &mut self,
        existing: Vec<ResourceSlice>,
        chunks: &[&[Device]],
        generation: i64,
    ) -> Result<Vec<ResourceSlice>, kube::Error> {
        let owner = self.owner().await?;
        let spec = |devices: &[Device]| ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(self.node.clone()),
            pool: ResourcePool { name: self.node.clone(), generation, resource_slice_count: chunks.len() as i64 },
            devices: Some(devices.to_vec()),
            ..ResourceSliceSpec::default()
        };
        let mut now = Vec::new();
        let mut left = existing.into_iter();
        for chunk in chunks {
            now.push(match left.next() {
                Some(mut slice) => {
                    slice.spec = spec(chunk);
                    let name = slice.metadata.name.clone().unwrap_or_default();
                    self.slices.replace(&name, &PostParams::default(), &slice).await?
                }
                None => {
                    let metadata = ObjectMeta {
                        generate_name: Some(format!("{}-{DRIVER}-", self.node)),
                        owner_references: owner.clone().map(|owner| vec![owner]),
                        ..ObjectMeta::default()
                    };
                    self.slices.create(&PostParams::default(), &ResourceSlice { metadata, spec: spec(chunk) }).await?
                }
            });
        }
        for slice in left {
            let deleted = self.slices.delete(&slice.metadata.name.unwrap_or_default(), &DeleteParams::default()).await;
            match deleted {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        Ok(now)
    }

    /// The node: slices go with it. One that the cluster does not know yet owns nothing.
    async fn owner(&mut self) -> Result<Option<OwnerReference>, kube::Error> {
        if self.owner.is_some() {
            return Ok(self.owner.clone());
        }
        let Some(node) = self.nodes.get_opt(&self.node).await? else { return Ok(None) };
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        self.owner = Some(owner);
        Ok(self.owner.clone())
    }
}

fn versions(slices: &[ResourceSlice]) -> Vec<(String, String)> {
    let mut all: Vec<_> = slices
        .iter()
        .map(|slice| (slice.metadata.name.clone().unwrap_or_default(), slice.metadata.resource_version.clone().unwrap_or_default()))
        .collect();
    all.sort();
    all
}

/// Whether the slices are complete and tell of just these devices.
fn is_current(existing: &[ResourceSlice], devices: &[Device], chunks: usize, generation: i64) -> bool {
    let whole = |slice: &ResourceSlice| slice.spec.pool.generation == generation && slice.spec.pool.resource_slice_count == chunks as i64;
    if existing.len() != chunks || !existing.iter().all(whole) {
        return false;
    }
    let mut found: Vec<Device> = existing.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).cloned().collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    for device in &mut found {
        // The API server says when a taint was set, if nobody else does.
        device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
    }
    found == devices
}
