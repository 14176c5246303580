//! The machine's GPUs as devices of ResourceSlices, which the scheduler chooses from.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use vgpu_config::inventory::{Gpu, Mig};

use crate::discovery::{GpuInfo, Machine, Partition};
use crate::names::{CORES, MEMORY};
use crate::quantity;

/// Maximum length of a string attribute, set by Kubernetes.
const MAX_STRING_BYTES: usize = 64;

/// GPU or MIG partition of this machine behind a device of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDevice {
    /// GPU, or parent GPU of the partition.
    pub gpu: Gpu,
    /// MIG partition, unless the device is a whole GPU.
    pub partition: Option<Partition>,
    /// Why the GPU should get no further work.
    pub fault: Option<String>,
}

impl LocalDevice {
    /// Returns the UUID: `GPU-…` or `MIG-…`.
    #[must_use]
    pub fn uuid(&self) -> &str {
        self.partition.as_ref().map_or(&self.gpu.uuid, |partition| &partition.mig.uuid)
    }

    /// Returns the memory available to shares in bytes, rounded down to whole MiB.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let bytes = self.partition.as_ref().map_or(self.gpu.memory, |partition| partition.mig.memory);
        bytes >> 20 << 20
    }
}

/// Returns the name of the device with this UUID. It does not depend on which other GPUs are present.
#[must_use]
pub fn device_name(uuid: &str) -> String {
    uuid.to_ascii_lowercase()
}

/// Returns a machine's devices by name, each with the device to publish for it.
#[must_use]
pub fn of_machine(machine: &Machine) -> BTreeMap<String, (LocalDevice, Device)> {
    let mut all = BTreeMap::new();
    for info in &machine.gpus {
        if !info.partitioned {
            let local = LocalDevice { gpu: info.gpu.clone(), partition: None, fault: info.fault.clone() };
            all.insert(device_name(local.uuid()), (local.clone(), device(machine, info, &local)));
        }
        for partition in &info.partitions {
            let local = LocalDevice { gpu: info.gpu.clone(), partition: Some(partition.clone()), fault: info.fault.clone() };
            all.insert(device_name(local.uuid()), (local.clone(), device(machine, info, &local)));
        }
    }
    all
}

fn device(machine: &Machine, info: &GpuInfo, local: &LocalDevice) -> Device {
    let partition = local.partition.as_ref();
    let mut attributes = BTreeMap::new();
    let mut set = |key: &str, value: Option<DeviceAttribute>| value.and_then(|value| attributes.insert(key.to_owned(), value));
    set("type", string_attribute(if partition.is_some() { "mig" } else { "gpu" }));
    set("uuid", string_attribute(local.uuid()));
    set("productName", string_attribute(&info.gpu.name));
    set("index", Some(DeviceAttribute { int: Some(info.gpu.index.into()), ..DeviceAttribute::default() }));
    set("architecture", info.architecture.as_deref().and_then(string_attribute));
    set("driverVersion", machine.driver.as_deref().and_then(version_attribute));
    set("cudaDriverVersion", machine.cuda.and_then(|cuda| version_attribute(&format!("{}.{}", cuda / 1000, cuda % 1000 / 10))));
    set("numaNode", info.numa.map(|node| DeviceAttribute { int: Some(node.into()), ..DeviceAttribute::default() }));
    set("resource.kubernetes.io/pcieRoot", info.pcie_root.as_deref().and_then(string_attribute));
    set("resource.kubernetes.io/pciBusID", info.address.as_deref().and_then(string_attribute));
    if let Some(Partition { mig: Mig { index, .. }, profile, .. }) = partition {
        set("parentUUID", string_attribute(&info.gpu.uuid));
        set("profile", string_attribute(profile));
        set("migIndex", Some(DeviceAttribute { int: Some((*index).into()), ..DeviceAttribute::default() }));
    }
    let memory = quantity::format_mib(local.memory_bytes());
    let capacity = BTreeMap::from([
        // Defaults of a request: all of the memory, and no reserved compute time, which also means no limit on it.
        (MEMORY.to_owned(), consumable_capacity(&memory, &memory, "1Mi", "1Mi")),
        (CORES.to_owned(), consumable_capacity("100", "0", "0", "1")),
    ]);
    Device {
        name: device_name(local.uuid()),
        attributes: Some(attributes),
        capacity: Some(capacity),
        allow_multiple_allocations: Some(true),
        ..Device::default()
    }
}

/// Returns a string attribute, cut to [`MAX_STRING_BYTES`] at a character boundary.
fn string_attribute(text: &str) -> Option<DeviceAttribute> {
    let string: String = text.chars().take(MAX_STRING_BYTES).collect();
    let fits = (0..=string.len()).rev().find(|&end| end <= MAX_STRING_BYTES && string.is_char_boundary(end))?;
    Some(DeviceAttribute { string: Some(string[..fits].to_owned()), ..DeviceAttribute::default() })
}

/// Returns a version attribute, which must be a semantic version: three numbers without leading zeros.
fn version_attribute(text: &str) -> Option<DeviceAttribute> {
    let numbers: Option<Vec<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
    let at = |place: usize| numbers.as_ref().map(|numbers| numbers.get(place).copied().unwrap_or(0));
    let version = format!("{}.{}.{}", at(0)?, at(1)?, at(2)?);
    Some(DeviceAttribute { version: Some(version), ..DeviceAttribute::default() })
}

/// Returns a capacity of which a request consumes `default`, or any multiple of `step` from `min` to `total`.
fn consumable_capacity(total: &str, default: &str, min: &str, step: &str) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.to_owned());
    DeviceCapacity {
        value: quantity(total),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity(default)),
            valid_range: Some(CapacityRequestPolicyRange { min: quantity(min), max: Some(quantity(total)), step: Some(quantity(step)) }),
            valid_values: None,
        }),
    }
}

/// Returns the device with a taint. `NoSchedule` keeps new pods away; `NoExecute` also evicts pods that use it.
#[must_use]
pub fn with_taint(mut device: Device, key: &str, effect: &str) -> Device {
    device.taints = Some(vec![DeviceTaint { key: key.to_owned(), effect: effect.to_owned(), time_added: None, value: None }]);
    device
}

/// Returns the message for a device that this node no longer has or that does not answer.
#[must_use]
pub fn not_present(device: &str) -> String {
    format!("device {device}: not found on this node or not responding")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu(number: u8, memory: u64) -> GpuInfo {
        let uuid = format!("GPU-{number:08}-0000-4000-8000-00000000000a");
        GpuInfo {
            gpu: Gpu { index: number.into(), uuid, name: "NVIDIA H200".to_owned(), memory, minor: Some(number.into()), mig: Vec::new() },
            architecture: Some("Hopper".to_owned()),
            address: Some(format!("0000:{number:02x}:00.0")),
            pcie_root: Some("pci0000:00".to_owned()),
            numa: Some(0),
            partitioned: false,
            partitions: Vec::new(),
            fault: None,
        }
    }

    pub(crate) fn machine(gpus: Vec<GpuInfo>) -> Machine {
        Machine { driver: Some("580.95.05".to_owned()), cuda: Some(13000), gpus }
    }

    fn attribute(device: &Device, key: &str) -> serde_json::Value {
        serde_json::to_value(&device.attributes.as_ref().unwrap()[key]).unwrap()
    }

    #[test]
    fn gpu_is_one_device_with_attributes_and_capacity() {
        let all = of_machine(&machine(vec![gpu(1, (24 << 30) + 4096)]));
        let (local, device) = &all["gpu-00000001-0000-4000-8000-00000000000a"];
        assert_eq!((local.memory_bytes(), device.allow_multiple_allocations), (24 << 30, Some(true)));
        assert_eq!(attribute(device, "driverVersion"), serde_json::json!({ "version": "580.95.5" }));
        assert_eq!(attribute(device, "cudaDriverVersion"), serde_json::json!({ "version": "13.0.0" }));
        assert_eq!(attribute(device, "productName"), serde_json::json!({ "string": "NVIDIA H200" }));
        let capacity = serde_json::to_value(device.capacity.as_ref().unwrap()).unwrap();
        assert_eq!(
            capacity,
            serde_json::json!({
                "memory": { "value": "24Gi", "requestPolicy": { "default": "24Gi", "validRange": { "min": "1Mi", "max": "24Gi", "step": "1Mi" } } },
                "cores": { "value": "100", "requestPolicy": { "default": "0", "validRange": { "min": "0", "max": "100", "step": "1" } } },
            })
        );
    }

    #[test]
    fn partitioned_gpu_is_published_as_its_partitions_only() {
        let mig = Mig { index: 0, uuid: "MIG-00000000-1111-4000-8000-000000000000".to_owned(), memory: 16 << 30 };
        let mut found = gpu(1, 80 << 30);
        found.partitioned = true;
        assert!(of_machine(&machine(vec![found.clone()])).is_empty());
        found.partitions.push(Partition { mig, profile: "1g.18gb".to_owned(), instance: (7, 0) });
        let all = of_machine(&machine(vec![found, gpu(2, 80 << 30)]));
        let names: Vec<_> = all.keys().map(String::as_str).collect();
        assert_eq!(names, ["gpu-00000002-0000-4000-8000-00000000000a", "mig-00000000-1111-4000-8000-000000000000"]);
        let (local, device) = &all[names[1]];
        assert_eq!((local.memory_bytes(), attribute(device, "profile")), (16 << 30, serde_json::json!({ "string": "1g.18gb" })));
        assert_eq!(attribute(device, "type"), serde_json::json!({ "string": "mig" }));
    }

    #[test]
    fn attributes_are_cut_to_their_limits() {
        assert_eq!(string_attribute(&"ä".repeat(40)).unwrap().string.unwrap().len(), 64);
        assert_eq!(version_attribute("580"), version_attribute("580.0.0"));
        assert_eq!(version_attribute("r580.1"), None);
    }
}
