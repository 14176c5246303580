//! The decisions that HAMi's and Volcano's schedulers leave in a pod's annotations.
//!
//! Entries are ordered by container, and a bundle only has the container's name, so the entry of this container is not known for sure
//! (HAMi 2.10.0 also misplaces entries). Where the container's GPUs are given by UUID, the entries for those GPUs count. Two different
//! entries for the same GPU belong to two containers of the pod; a container that has the GPU and no limits in its environment is then
//! refused. A decision only narrows a container's GPUs, it grants none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use vgpu_region::uuid::Uuid;

use crate::devices::{Visible, uuid};
use crate::error::Result;
use crate::quantity::{Bytes, MIB, number, percent_or_unlimited};
use crate::request::{GpuRequest, GpuRequests};
use crate::setting::{Setting, Sourced};

/// HAMi's annotation, written before the pod is bound and so before the container is created.
pub const HAMI: &str = "hami.io/vgpu-devices-allocated";
/// The annotation of Volcano's device plugin.
pub const VOLCANO: &str = "volcano.sh/vgpu-ids-new";

const EXPECTED: &str = "UUID,NVIDIA,<MiB>,<cores> for each device, ':' after each, ';' between containers";

/// Returns whether a scheduler has decided for the pod.
#[must_use]
pub fn has_decision(annotations: &BTreeMap<String, String>) -> bool {
    [HAMI, VOLCANO].iter().any(|key| annotations.contains_key(*key))
}

/// Reads the annotations that a scheduler leaves.
///
/// # Errors
/// An entry does not have the documented form, or two entries for a visible GPU differ.
pub fn read(annotations: &BTreeMap<String, String>, visible: &Visible) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    for key in [HAMI, VOLCANO] {
        let Some(value) = annotations.get(key) else { continue };
        let setting = Setting::annotation(key, value);
        for entry in value.split([';', ':']).filter(|entry| !entry.is_empty()) {
            let Some((uuid, gpu)) = device(entry, &setting)? else { continue };
            if !visible.may_include(&uuid) {
                continue;
            }
            match requests.by_uuid.entry(uuid.0) {
                Entry::Vacant(vacant) => drop(vacant.insert(gpu)),
                Entry::Occupied(known) if visible.has_gpus() && *known.get() != gpu => {
                    return Err(setting.refused(format!(
                        "one share of {uuid} for a container without limits of its own (CUDA_DEVICE_MEMORY_LIMIT_<i>): two shares differ, \
                         and it is ambiguous which one belongs to this container"
                    )));
                }
                Entry::Occupied(mut known) => {
                    let strictest = std::mem::take(known.get_mut()).strictest(gpu);
                    known.insert(strictest);
                }
            }
        }
    }
    Ok(requests)
}

/// Parses one device's entry. `None` for other vendors' devices, and for MIG devices, which limit themselves.
fn device(entry: &str, setting: &Setting) -> Result<Option<(Uuid, GpuRequest)>> {
    let fields: Vec<&str> = entry.split(',').collect();
    let [name, vendor, memory, cores] = fields[..] else { return Err(setting.refused(EXPECTED)) };
    if !vendor.eq_ignore_ascii_case("NVIDIA") || name.contains('[') {
        return Ok(None);
    }
    let parse = || {
        let memory = Bytes::new(number(memory)?.checked_mul(MIB)?)?;
        Some((uuid(name)?, memory, percent_or_unlimited(cores)?))
    };
    let (uuid, memory, cores) = parse().ok_or_else(|| setting.refused(EXPECTED))?;
    let gpu = GpuRequest {
        memory: Some(Sourced { value: memory, setting: setting.clone() }),
        cores: cores.map(|cores| Sourced { value: cores, setting: setting.clone() }),
        ..GpuRequest::default()
    };
    Ok(Some((uuid, gpu)))
}
