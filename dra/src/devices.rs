//! What a scheduler can choose from: the machine's GPUs as devices of ResourceSlices.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use vgpu_config::inventory::{Gpu, Mig};

use crate::discovery::{GpuInfo, Machine, Partition};
use crate::names::{CORES, GONE_TAINT, MEMORY};
use crate::quantity;

/// Longest text that an attribute may have.
const MAX_STRING_BYTES: usize = 64;

/// What a device of a slice is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDevice {
    /// The GPU.
    pub gpu: Gpu,
    /// The piece of it that the device is, if it is one.
    pub partition: Option<Partition>,
}

impl LocalDevice {
    /// `GPU-…` or `MIG-…`.
    #[must_use]
    pub fn uuid(&self) -> &str {
        self.partition.as_ref().map_or(&self.gpu.uuid, |partition| &partition.mig.uuid)
    }

    /// All of its memory that shares can be had of, in bytes: whole MiB.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let bytes = self.partition.as_ref().map_or(self.gpu.memory, |partition| partition.mig.memory);
        bytes >> 20 << 20
    }
}

/// The name of the device with this UUID. It stays the same whichever other GPUs come and go.
#[must_use]
pub fn device_name(uuid: &str) -> String {
    uuid.to_ascii_lowercase()
}

/// A machine's devices by name: what they are, and how they are told to the scheduler.
#[must_use]
pub fn of_machine(machine: &Machine) -> BTreeMap<String, (LocalDevice, Device)> {
    let mut all = BTreeMap::new();
    for found in &machine.gpus {
        if !found.partitioned {
            let known = LocalDevice { gpu: found.gpu.clone(), partition: None };
            all.insert(device_name(known.uuid()), (known.clone(), device(machine, found, &known)));
        }
        for partition in &found.partitions {
            let known = LocalDevice { gpu: found.gpu.clone(), partition: Some(partition.clone()) };
            all.insert(device_name(known.uuid()), (known.clone(), device(machine, found, &known)));
        }
    }
    all
}

fn device(machine: &Machine, found: &GpuInfo, known: &LocalDevice) -> Device {
    let partition = known.partition.as_ref();
    let mut attributes = BTreeMap::new();
    let mut say = |key: &str, value: Option<DeviceAttribute>| value.and_then(|value| attributes.insert(key.to_owned(), value));
    say("type", string_attribute(if partition.is_some() { "mig" } else { "gpu" }));
    say("uuid", string_attribute(known.uuid()));
    say("productName", string_attribute(&found.gpu.name));
    say("index", Some(DeviceAttribute { int: Some(found.gpu.index.into()), ..DeviceAttribute::default() }));
    say("architecture", found.architecture.as_deref().and_then(string_attribute));
    say("driverVersion", machine.driver.as_deref().and_then(version_attribute));
    say("cudaDriverVersion", machine.cuda.and_then(|cuda| version_attribute(&format!("{}.{}", cuda / 1000, cuda % 1000 / 10))));
    say("numaNode", found.numa.map(|node| DeviceAttribute { int: Some(node.into()), ..DeviceAttribute::default() }));
    say("resource.kubernetes.io/pcieRoot", found.pcie_root.as_deref().and_then(string_attribute));
    say("resource.kubernetes.io/pciBusID", found.address.as_deref().and_then(string_attribute));
    if let Some(Partition { mig: Mig { index, .. }, profile, .. }) = partition {
        say("parentUUID", string_attribute(&found.gpu.uuid));
        say("profile", string_attribute(profile));
        say("migIndex", Some(DeviceAttribute { int: Some((*index).into()), ..DeviceAttribute::default() }));
    }
    let memory = quantity::format_mib(known.memory());
    let capacity = BTreeMap::from([
        // Who says nothing of memory means all of it; who says nothing of time means none that is held free, and no limit.
        (MEMORY.to_owned(), consumable_capacity(&memory, &memory, "1Mi", "1Mi")),
        (CORES.to_owned(), consumable_capacity("100", "0", "0", "1")),
    ]);
    Device {
        name: device_name(known.uuid()),
        attributes: Some(attributes),
        capacity: Some(capacity),
        allow_multiple_allocations: Some(true),
        ..Device::default()
    }
}

fn string_attribute(text: &str) -> Option<DeviceAttribute> {
    let string: String = text.chars().take(MAX_STRING_BYTES).collect();
    let fits = (0..=string.len()).rev().find(|&end| end <= MAX_STRING_BYTES && string.is_char_boundary(end))?;
    Some(DeviceAttribute { string: Some(string[..fits].to_owned()), ..DeviceAttribute::default() })
}

/// A version as semver wants it: three numbers without leading zeros.
fn version_attribute(text: &str) -> Option<DeviceAttribute> {
    let numbers: Option<Vec<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
    let at = |place: usize| numbers.as_ref().map(|numbers| numbers.get(place).copied().unwrap_or(0));
    let version = format!("{}.{}.{}", at(0)?, at(1)?, at(2)?);
    Some(DeviceAttribute { version: Some(version), ..DeviceAttribute::default() })
}

fn consumable_capacity(all: &str, default: &str, least: &str, step: &str) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.to_owned());
    DeviceCapacity {
        value: quantity(all),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity(default)),
            valid_range: Some(CapacityRequestPolicyRange { min: quantity(least), max: Some(quantity(all)), step: Some(quantity(step)) }),
            valid_values: None,
        }),
    }
}

/// The device as one that is gone: nobody gets it (`NoSchedule`), or who has it leaves, too (`NoExecute`).
#[must_use]
pub fn with_taint(mut device: Device, effect: &str) -> Device {
    device.taints = Some(vec![DeviceTaint { key: GONE_TAINT.to_owned(), effect: effect.to_owned(), time_added: None, value: None }]);
    device
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
        }
    }

    pub(crate) fn machine(gpus: Vec<GpuInfo>) -> Machine {
        Machine { driver: Some("580.95.05".to_owned()), cuda: Some(13000), gpus }
    }

    fn attribute(device: &Device, key: &str) -> serde_json::Value {
        serde_json::to_value(&device.attributes.as_ref().unwrap()[key]).unwrap()
    }

    #[test]
    fn a_gpu_is_one_device_with_what_it_has() {
        let all = of_machine(&machine(vec![gpu(1, (24 << 30) + 4096)]));
        let (known, device) = &all["gpu-00000001-0000-4000-8000-00000000000a"];
        assert_eq!((known.memory(), device.allow_multiple_allocations), (24 << 30, Some(true)));
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
    fn a_partitioned_gpu_is_only_its_pieces() {
        let mig = Mig { index: 0, uuid: "MIG-00000000-1111-4000-8000-000000000000".to_owned(), memory: 16 << 30 };
        let mut found = gpu(1, 80 << 30);
        found.partitioned = true;
        assert!(of_machine(&machine(vec![found.clone()])).is_empty());
        found.partitions.push(Partition { mig, profile: "1g.18gb".to_owned(), instance: (7, 0) });
        let all = of_machine(&machine(vec![found, gpu(2, 80 << 30)]));
        let names: Vec<_> = all.keys().map(String::as_str).collect();
        assert_eq!(names, ["gpu-00000002-0000-4000-8000-00000000000a", "mig-00000000-1111-4000-8000-000000000000"]);
        let (known, device) = &all[names[1]];
        assert_eq!((known.memory(), attribute(device, "profile")), (16 << 30, serde_json::json!({ "string": "1g.18gb" })));
        assert_eq!(attribute(device, "type"), serde_json::json!({ "string": "mig" }));
    }

    #[test]
    fn texts_are_cut_to_what_an_attribute_may_be() {
        assert_eq!(string_attribute(&"ä".repeat(40)).unwrap().string.unwrap().len(), 64);
        assert_eq!(version_attribute("580"), version_attribute("580.0.0"));
        assert_eq!(version_attribute("r580.1"), None);
    }
}
