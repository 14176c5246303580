//! The decisions that HAMi's and Volcano's schedulers leave in a pod's annotations.
//!
//! Entries stand by the position of their container, and a bundle has only names, so which one is ours is not known for sure
//! (HAMi 2.10.0 also misplaces them). So: where the container's GPUs are given by UUID, the entries for those count. Two different ones for
//! the same GPU are two containers' of the pod; one that has the GPU and is told nothing more by its environment does not start. A decision
//! narrows what a container has, it grants nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::devices::{Visible, uuid};
use crate::error::Result;
use crate::quantity::{MIB, number, percent_or_none};
use crate::request::{Claim, GpuRequest};
use crate::setting::{Said, Setting};

/// HAMi: written before the pod is bound, so it is there when the container is created.
pub const HAMI: &str = "hami.io/vgpu-devices-allocated";
/// Volcano's device plugin.
pub const VOLCANO: &str = "volcano.sh/vgpu-ids-new";

const ACCEPTED: &str = "UUID,NVIDIA,<MiB>,<cores> for each device, ':' after each, ';' between containers";

/// Whether a scheduler has decided for the pod.
#[must_use]
pub fn decided(annotations: &BTreeMap<String, String>) -> bool {
    [HAMI, VOLCANO].iter().any(|key| annotations.contains_key(*key))
}

/// Reads the annotations that a scheduler leaves.
///
/// # Errors
/// An entry without the documented form.
pub fn read(annotations: &BTreeMap<String, String>, visible: &Visible) -> Result<Claim> {
    let mut claim = Claim::default();
    for key in [HAMI, VOLCANO] {
        let Some(value) = annotations.get(key) else { continue };
        let setting = Setting::annotation(key, value);
        for entry in value.split([';', ':']).filter(|entry| !entry.is_empty()) {
            let Some((name, gpu)) = device(entry, &setting)? else { continue };
            if !visible.may_have(&name) {
                continue;
            }
            match claim.by_uuid.entry(name.0) {
                Entry::Vacant(place) => drop(place.insert(gpu)),
                Entry::Occupied(place) if visible.gives() && *place.get() != gpu => {
                    return Err(setting.refused(format!(
                        "one share of each GPU for a container that does not say its own (in CUDA_DEVICE_MEMORY_LIMIT_<i>): {name} has two that \
                         differ, and which of them was decided for this container cannot be told"
                    )));
                }
                Entry::Occupied(mut place) => {
                    let strictest = std::mem::take(place.get_mut()).strictest(gpu);
                    place.insert(strictest);
                }
            }
        }
    }
    Ok(claim)
}

/// One device's entry; `None` for another vendor's, and for a piece of a GPU, which is a limit of its own.
fn device(entry: &str, by: &Setting) -> Result<Option<(vgpu_region::uuid::Uuid, GpuRequest)>> {
    let fields: Vec<&str> = entry.split(',').collect();
    let [name, vendor, memory, cores] = fields[..] else { return Err(by.refused(ACCEPTED)) };
    if !vendor.eq_ignore_ascii_case("NVIDIA") || name.contains('[') {
        return Ok(None);
    }
    let read = || {
        let memory = number(memory)?.checked_mul(MIB)?;
        Some((uuid(name)?, memory, percent_or_none(cores)?))
    };
    let (name, memory, cores) = read().ok_or_else(|| by.refused(ACCEPTED))?;
    let gpu = GpuRequest {
        memory: Some(Said { value: memory, by: by.clone() }),
        cores: cores.map(|cores| Said { value: cores, by: by.clone() }),
        ..GpuRequest::default()
    };
    Ok(Some((name, gpu)))
}
