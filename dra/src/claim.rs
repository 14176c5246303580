//! What a claim was given: the results of its allocation that are ours.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use crate::devices::LocalDevice;
use crate::names::{CORES, DRIVER, MEMORY};
use crate::quantity;

/// A share of one device, for one of the claim's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The request that it answers.
    pub request: String,
    /// The device's pool.
    pub pool: String,
    /// The device's name there.
    pub device: String,
    /// What tells it from other shares of the device, if there can be others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The GPU or MIG device.
    pub uuid: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// Compute time in percent; no limit if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The number of the GPU's device node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// The GPU instance and compute instance, for a MIG device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
}

/// The shares that `claim` was given on the node's pool, among its devices that `known` looks up.
///
/// # Errors
/// It is not allocated, or what it was given is not here.
pub fn grants<'a>(claim: &ResourceClaim, node: &str, known: impl Fn(&str) -> Option<&'a LocalDevice>) -> Result<Vec<Grant>, String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref()).ok_or("it is not allocated")?;
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_deref()).unwrap_or_default();
    let ours = results.iter().filter(|result| result.driver == DRIVER);
    let grants = ours.map(|result| grant(result, node, known(&result.device))).collect::<Result<Vec<_>, _>>()?;
    if grants.is_empty() { Err(format!("it has no device of {DRIVER}")) } else { Ok(grants) }
}

fn grant(result: &DeviceRequestAllocationResult, node: &str, known: Option<&LocalDevice>) -> Result<Grant, String> {
    let DeviceRequestAllocationResult { pool, device, .. } = result;
    if pool != node {
        return Err(format!("it was given {device} of the pool {pool}, and this node's is {node}"));
    }
    let known = known.ok_or_else(|| format!("it was given {device}, which is not there or does not work"))?;
    let consumed = |capacity| amount(result.consumed_capacity.as_ref(), capacity);
    let memory = consumed(MEMORY)?.unwrap_or(known.memory());
    if memory == 0 || memory > known.memory() {
        return Err(format!("it was given {memory} bytes of {device}, which has {}", known.memory()));
    }
    Ok(Grant {
        // A request with alternatives is named by itself and the alternative; containers name only itself.
        request: result.request.split('/').next().unwrap_or_default().to_owned(),
        pool: pool.clone(),
        device: device.clone(),
        share: result.share_id.clone(),
        uuid: known.uuid().to_owned(),
        memory,
        cores: consumed(CORES)?.and_then(|cores| u32::try_from(cores).ok()).filter(|cores| (1..100).contains(cores)),
        minor: known.gpu.minor,
        instance: known.partition.as_ref().map(|partition| partition.instance),
    })
}

/// What was taken of a capacity; `None` if that is not said, as where devices cannot be shared.
fn amount(consumed: Option<&BTreeMap<String, Quantity>>, capacity: &str) -> Result<Option<u64>, String> {
    let Some(consumed) = consumed else { return Ok(None) };
    let Some(said) = consumed.get(capacity).or_else(|| consumed.get(&format!("{DRIVER}/{capacity}"))) else { return Ok(None) };
    quantity::parse(&said.0).map(Some).ok_or_else(|| format!("it was given {capacity} {:?}, which is no quantity", said.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices;
    use crate::devices::tests::{gpu, machine};
    use serde_json::{Value, json};

    const DEVICE: &str = "gpu-00000001-0000-4000-8000-00000000000a";

    fn given(results: Value) -> Result<Vec<Grant>, String> {
        let claim = json!({ "metadata": {}, "spec": {}, "status": { "allocation": { "devices": { "results": results } } } });
        let devices = devices::of_machine(&machine(vec![gpu(1, 24 << 30)]));
        grants(&serde_json::from_value(claim).unwrap(), "node", |name| devices.get(name).map(|(known, _)| known))
    }

    fn result(more: Value) -> Value {
        let mut result = json!({ "request": "gpu", "driver": DRIVER, "pool": "node", "device": DEVICE });
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result
    }

    #[test]
    fn shares_are_what_was_consumed() {
        let one = result(json!({ "shareID": "a", "consumedCapacity": { "memory": "10Gi", "cores": "30" }, "request": "gpu/large" }));
        let grants = given(json!([one, { "request": "x", "driver": "other", "pool": "p", "device": "d" }])).unwrap();
        assert_eq!(grants.len(), 1);
        let Grant { request, share, uuid, memory, cores, minor, .. } = &grants[0];
        assert_eq!((request.as_str(), share.as_deref(), *memory, *cores, *minor), ("gpu", Some("a"), 10 << 30, Some(30), Some(1)));
        assert_eq!(uuid, "GPU-00000001-0000-4000-8000-00000000000a");
    }

    #[test]
    fn where_devices_cannot_be_shared_it_is_all_of_one() {
        let grant = &given(json!([result(json!({}))])).unwrap()[0];
        assert_eq!((grant.memory, grant.cores), (24 << 30, None));
        for cores in ["0", "100"] {
            let consumed = json!({ "consumedCapacity": { "memory": "1Gi", "cores": cores } });
            assert_eq!(given(json!([result(consumed)])).unwrap()[0].cores, None, "{cores}");
        }
    }

    #[test]
    fn what_cannot_be_given_is_not() {
        let cases = [
            (json!([]), "no device of gpu.vgpu"),
            (json!([result(json!({ "pool": "other" }))]), "of the pool other"),
            (json!([result(json!({ "device": "gone" }))]), "not there"),
            (json!([result(json!({ "consumedCapacity": { "memory": "25Gi" } }))]), "which has"),
            (json!([result(json!({ "consumedCapacity": { "memory": "0" } }))]), "which has"),
            (json!([result(json!({ "consumedCapacity": { "memory": "1Q" } }))]), "no quantity"),
        ];
        for (results, expected) in cases {
            let why = given(results).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let pending = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert_eq!(grants(&pending, "node", |_| None).unwrap_err(), "it is not allocated");
    }
}
