//! Publication of the node's ResourceSlices. All slices of the node's pool have one generation.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};

use crate::names::DRIVER;

/// Maximum number of devices in a slice. Kubernetes accepts 128, but only 64 if any of them has a taint.
pub const MAX_DEVICES: usize = 64;

/// Publisher of the slices of this node's pool.
pub struct SlicePublisher {
    slices: Api<ResourceSlice>,
    nodes: Api<Node>,
    node: String,
    owner: Option<OwnerReference>,
    published: Option<Published>,
}

/// Devices that were published last, and the slices' resource versions since.
struct Published {
    devices: Vec<Device>,
    versions: Vec<(String, String)>,
    features: Features,
}

/// Fields of a device that the API server keeps. It drops fields whose feature gate is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// True if devices can be shared (`DRAConsumableCapacity`).
    pub sharing: bool,
    /// True if devices can have taints (`DRADeviceTaints`).
    pub taints: bool,
}

impl SlicePublisher {
    /// Returns a publisher for this node.
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self { slices: Api::all(client.clone()), nodes: Api::all(client), node, owner: None, published: None }
    }

    /// Returns the field selector of this driver's slices on a node.
    #[must_use]
    pub fn selector(node: &str) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={node}")
    }

    /// Makes the slices contain exactly these devices, and returns the features that the API server supports.
    ///
    /// The API server is asked only if the devices differ from the last call's, or if the slices `may_have_changed` since: a cluster may
    /// have thousands of nodes.
    ///
    /// # Errors
    /// The API server does not answer, or another writer changed the slices at the same time. The call can be repeated at once.
    pub async fn reconcile(&mut self, devices: &[Device], may_have_changed: bool) -> Result<Features, kube::Error> {
        if let Some(published) = self.published.as_ref().filter(|published| !may_have_changed && published.devices == devices) {
            return Ok(published.features);
        }
        let existing = self.existing().await?;
        if let Some(published) = &self.published
            && published.devices == devices
            && published.versions == versions(&existing)
        {
            return Ok(published.features);
        }
        let generation = existing.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        let chunks: Vec<&[Device]> = devices.chunks(MAX_DEVICES).collect();
        let current = if is_current(&existing, devices, chunks.len(), generation) {
            existing
        } else {
            self.write(existing, &chunks, generation + 1).await?
        };
        let any = |has: fn(&Device) -> bool| current.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).any(has);
        let features = Features {
            sharing: devices.is_empty() || any(|device| device.allow_multiple_allocations == Some(true)),
            taints: !devices.iter().any(|device| device.taints.is_some()) || any(|device| device.taints.is_some()),
        };
        self.published = Some(Published { devices: devices.to_vec(), versions: versions(&current), features });
        Ok(features)
    }

    async fn existing(&self) -> Result<Vec<ResourceSlice>, kube::Error> {
        let listed = self.slices.list(&ListParams::default().fields(&Self::selector(&self.node))).await?.items;
        let ours = |slice: &ResourceSlice| slice.spec.driver == DRIVER && slice.spec.pool.name == self.node;
        Ok(listed.into_iter().filter(ours).collect())
    }

    /// Returns the devices in the slices, also those of an earlier process, without their taints.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn published_devices(&self) -> Result<Vec<Device>, kube::Error> {
        let devices = self.existing().await?.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
        Ok(devices.map(|device| Device { taints: None, ..device }).collect())
    }

    /// Replaces, creates and deletes slices so that they contain `chunks`, all in one generation.
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
        let mut written = Vec::new();
        let mut existing = existing.into_iter();
        for chunk in chunks {
            written.push(match existing.next() {
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
        for slice in existing {
            let deleted = self.slices.delete(&slice.metadata.name.unwrap_or_default(), &DeleteParams::default()).await;
            match deleted {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        Ok(written)
    }

    /// Returns a reference to the node as the slices' owner, so that they are deleted with it; `None` if the node is not in the cluster yet.
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

/// Returns the names and resource versions of slices, sorted.
fn versions(slices: &[ResourceSlice]) -> Vec<(String, String)> {
    let mut all: Vec<_> = slices
        .iter()
        .map(|slice| (slice.metadata.name.clone().unwrap_or_default(), slice.metadata.resource_version.clone().unwrap_or_default()))
        .collect();
    all.sort();
    all
}

/// Returns true if the slices are complete and contain exactly these devices.
fn is_current(existing: &[ResourceSlice], devices: &[Device], chunk_count: usize, generation: i64) -> bool {
    let is_complete =
        |slice: &ResourceSlice| slice.spec.pool.generation == generation && slice.spec.pool.resource_slice_count == chunk_count as i64;
    if existing.len() != chunk_count || !existing.iter().all(is_complete) {
        return false;
    }
    let mut found: Vec<Device> = existing.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).cloned().collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    for device in &mut found {
        // Set by the API server.
        device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
    }
    found == devices
}
