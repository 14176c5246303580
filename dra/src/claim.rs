//! Results of a claim's allocation that belong to this driver.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use crate::devices::{self, LocalDevice};
use crate::names::{CORES, DRIVER, MEMORY};
use crate::{parameters, quantity};

/// Share of one device, allocated to one request of a claim. The checkpoint stores it under these field names.
///
/// Containers that use the same share are limited separately. A common limit is not possible, as the library identifies the other processes
/// in NVML's lists by PID, which is ambiguous across PID namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Request that the share satisfies.
    pub request: String,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// ID of the share, if the device can be shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// UUID of the GPU or MIG device.
    pub uuid: String,
    /// Device memory in bytes.
    pub memory: u64,
    /// Compute time in percent; no limit if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Compute time in percent while the GPU is otherwise idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_soft: Option<u32>,
    /// Priority of the container's turns: 0 (high) or 1 (normal).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// True if memory beyond the share spills to the host.
    #[serde(default, skip_serializing_if = "is_false")]
    pub oversubscribe: bool,
    /// True if the claim has administrative access: it observes the device, without a share of it and without limits.
    #[serde(default, skip_serializing_if = "is_false")]
    pub admin: bool,
    /// Minor number of the GPU's device node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// IDs of the GPU instance and the compute instance of a MIG device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
}

/// Returns true for false, which is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Returns the shares allocated to `claim` from the node's pool, whose devices `find` looks up by name.
///
/// # Errors
/// The claim is not allocated, or a device or its capacity does not exist on this node.
pub fn grants<'a>(claim: &ResourceClaim, node: &str, find: impl Fn(&str) -> Option<&'a LocalDevice>) -> Result<Vec<Grant>, String> {
    let allocation =
        claim.status.as_ref().and_then(|status| status.allocation.as_ref()).ok_or("claim not allocated: expected status.allocation")?;
    let devices = allocation.devices.as_ref();
    let results = devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default();
    let config = devices.and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    let ours = results.iter().filter(|result| result.driver == DRIVER);
    let grants = ours.map(|result| grant(result, config, node, find(&result.device))).collect::<Result<Vec<_>, _>>()?;
    if grants.is_empty() { Err(format!("allocation without a device: expected a device of driver {DRIVER}")) } else { Ok(grants) }
}

/// Returns the share of one device of an allocation, whose configuration is `config`.
fn grant(
    result: &DeviceRequestAllocationResult,
    config: &[DeviceAllocationConfiguration],
    node: &str,
    local: Option<&LocalDevice>,
) -> Result<Grant, String> {
    let DeviceRequestAllocationResult { pool, device, .. } = result;
    if pool != node {
        return Err(format!("device {device}: pool {pool:?}: expected this node's pool {node:?}"));
    }
    let local = local.ok_or_else(|| devices::not_present(device))?;
    let consumed = |capacity| consumed(result.consumed_capacity.as_ref(), capacity);
    let memory = consumed(MEMORY)?.unwrap_or(local.memory_bytes());
    if memory == 0 || memory > local.memory_bytes() {
        return Err(format!("device {device}: {memory} bytes of memory: expected 1 to {}", local.memory_bytes()));
    }
    let parameters = parameters::of_request(config, &result.request)?;
    let cores = consumed(CORES)?.and_then(|cores| u32::try_from(cores).ok()).filter(|cores| (1..100).contains(cores));
    if let Some(soft) = parameters.cores_soft
        && cores.is_none_or(|cores| cores > soft)
    {
        let has = cores.map_or("none".to_owned(), |cores| cores.to_string());
        return Err(format!("device {device}: coresSoft: {soft}: expected at least the cores of the same request, which has {has}"));
    }
    Ok(Grant {
        // With alternatives, the name is REQUEST/ALTERNATIVE. Containers refer to REQUEST alone.
        request: result.request.split('/').next().unwrap_or_default().to_owned(),
        pool: pool.clone(),
        device: device.clone(),
        share: result.share_id.clone(),
        uuid: local.uuid().to_owned(),
        memory,
        cores,
        cores_soft: parameters.cores_soft,
        priority: parameters.priority,
        oversubscribe: parameters.oversubscribe.unwrap_or(false),
        admin: result.admin_access == Some(true),
        minor: local.gpu.minor,
        instance: local.partition.as_ref().map(|partition| partition.instance),
    })
}

/// Returns the consumed amount of a capacity, or `None` if the allocation has none, as on clusters where devices cannot be shared.
fn consumed(capacities: Option<&BTreeMap<String, Quantity>>, name: &str) -> Result<Option<u64>, String> {
    let Some(capacities) = capacities else { return Ok(None) };
    let Some(value) = capacities.get(name).or_else(|| capacities.get(&format!("{DRIVER}/{name}"))) else { return Ok(None) };
    quantity::parse(&value.0).map(Some).ok_or_else(|| format!("capacity {name}: {:?}: expected a quantity such as 10Gi", value.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::{gpu, machine};
    use serde_json::{Value, json};

    const DEVICE: &str = "gpu-00000001-0000-4000-8000-00000000000a";

    fn grants_of(results: Value) -> Result<Vec<Grant>, String> {
        let claim = json!({ "metadata": {}, "spec": {}, "status": { "allocation": { "devices": { "results": results } } } });
        let devices = devices::of_machine(&machine(vec![gpu(1, 24 << 30)]));
        grants(&serde_json::from_value(claim).unwrap(), "node", |name| devices.get(name).map(|(local, _)| local))
    }

    fn result(more: Value) -> Value {
        let mut result = json!({ "request": "gpu", "driver": DRIVER, "pool": "node", "device": DEVICE });
        result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        result
    }

    #[test]
    fn shares_have_the_consumed_capacity() {
        let one = result(json!({ "shareID": "a", "consumedCapacity": { "memory": "10Gi", "cores": "30" }, "request": "gpu/large" }));
        let grants = grants_of(json!([one, { "request": "x", "driver": "other", "pool": "p", "device": "d" }])).unwrap();
        assert_eq!(grants.len(), 1);
        let Grant { request, share, uuid, memory, cores, minor, .. } = &grants[0];
        assert_eq!((request.as_str(), share.as_deref(), *memory, *cores, *minor), ("gpu", Some("a"), 10 << 30, Some(30), Some(1)));
        assert_eq!(uuid, "GPU-00000001-0000-4000-8000-00000000000a");
    }

    #[test]
    fn allocation_without_consumed_capacity_is_a_whole_device() {
        let grant = &grants_of(json!([result(json!({}))])).unwrap()[0];
        assert_eq!((grant.memory, grant.cores), (24 << 30, None));
        for cores in ["0", "100"] {
            let consumed = json!({ "consumedCapacity": { "memory": "1Gi", "cores": cores } });
            assert_eq!(grants_of(json!([result(consumed)])).unwrap()[0].cores, None, "{cores}");
        }
    }

    #[test]
    fn administrative_access_and_parameters_are_read() {
        let admin = &grants_of(json!([result(json!({ "adminAccess": true }))])).unwrap()[0];
        assert!(admin.admin && !grants_of(json!([result(json!({}))])).unwrap()[0].admin);
        let with = |cores: &str| {
            let results = json!([result(json!({ "consumedCapacity": { "memory": "1Gi", "cores": cores } }))]);
            let parameters = json!({ "apiVersion": "vgpu.io/v1", "kind": "ShareParameters", "coresSoft": 50, "priority": 0 });
            let config = json!([{ "source": "FromClaim", "opaque": { "driver": DRIVER, "parameters": parameters } }]);
            let claim =
                json!({ "metadata": {}, "spec": {}, "status": { "allocation": { "devices": { "results": results, "config": config } } } });
            let devices = devices::of_machine(&machine(vec![gpu(1, 24 << 30)]));
            grants(&serde_json::from_value(claim).unwrap(), "node", |name| devices.get(name).map(|(local, _)| local))
        };
        assert_eq!(with("30").unwrap()[0].cores_soft, Some(50));
        assert_eq!(with("30").unwrap()[0].priority, Some(0));
        for (cores, has) in [("60", "which has 60"), ("0", "which has none")] {
            let error = with(cores).unwrap_err();
            assert!(error.contains("coresSoft: 50: expected at least the cores") && error.contains(has), "{error}");
        }
    }

    #[test]
    fn impossible_allocations_are_refused() {
        let cases = [
            (json!([]), "expected a device of driver gpu.vgpu"),
            (json!([result(json!({ "pool": "other" }))]), r#"pool "other": expected this node's pool "node""#),
            (json!([result(json!({ "device": "gone" }))]), "device gone: not found"),
            (
                json!([result(json!({ "consumedCapacity": { "memory": "25Gi" } }))]),
                "26843545600 bytes of memory: expected 1 to 25769803776",
            ),
            (json!([result(json!({ "consumedCapacity": { "memory": "0" } }))]), "0 bytes of memory: expected"),
            (json!([result(json!({ "consumedCapacity": { "memory": "1Q" } }))]), r#"capacity memory: "1Q": expected a quantity"#),
        ];
        for (results, expected) in cases {
            let error = grants_of(results).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let pending = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert_eq!(grants(&pending, "node", |_| None).unwrap_err(), "claim not allocated: expected status.allocation");
    }
}
