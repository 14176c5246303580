//! The GPUs that a container may use, and the selection among them.

use vgpu_region::uuid::Uuid;

use crate::error::{Error, Result, one_line};
use crate::inventory::{Gpu, Inventory};
use crate::setting::{Setting, Sourced};

/// The container's selection among its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Number of GPUs.
    pub count: Option<Sourced<u32>>,
    /// Only these UUIDs.
    pub use_uuid: Option<Sourced<Vec<String>>>,
    /// None of these UUIDs.
    pub nouse_uuid: Option<Sourced<Vec<String>>>,
    /// Only GPUs whose product name contains one of these, in lower case.
    pub use_type: Option<Sourced<Vec<String>>>,
    /// No GPU whose product name contains one of these, in lower case.
    pub nouse_type: Option<Sourced<Vec<String>>>,
}

/// A GPU as named to the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The name as written.
    pub text: String,
    /// The UUID, if the name is one.
    pub uuid: Option<Uuid>,
}

/// The value of `NVIDIA_VISIBLE_DEVICES`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VisibleDevices {
    /// The variable is not set. The container may still get GPUs in other ways.
    #[default]
    Unset,
    /// `none`, `void`, or empty.
    Nothing,
    /// `all`.
    All,
    /// A list, in the container's order.
    List(Vec<DeviceName>),
}

/// The GPUs that a container may use according to its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// The value of `NVIDIA_VISIBLE_DEVICES`.
    pub devices: VisibleDevices,
    /// The order in which another device plugin numbers the GPUs.
    pub order: Vec<Uuid>,
    /// Whether `devices` no longer matches the variable, so that the variable has to be rewritten.
    pub is_overridden: bool,
}

impl Visible {
    /// Parses a value of `NVIDIA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn parse(value: &str) -> Self {
        let devices = match value {
            "" | "none" | "void" => VisibleDevices::Nothing,
            "all" => VisibleDevices::All,
            list => VisibleDevices::List(list.split(',').map(DeviceName::new).collect()),
        };
        Self { devices, ..Self::default() }
    }

    /// Takes the order from a comma-separated list of UUIDs, unless an order is known already.
    pub fn order_by(&mut self, list: &str) {
        if self.order.is_empty() {
            self.order = list.split(',').map_while(uuid).collect();
        }
    }

    /// Returns whether the environment gives the container a GPU.
    #[must_use]
    pub fn has_gpus(&self) -> bool {
        matches!(self.devices, VisibleDevices::All | VisibleDevices::List(_))
    }

    /// Returns whether the GPU with this UUID may be visible. True unless every visible GPU is known by its UUID.
    #[must_use]
    pub fn may_include(&self, wanted: &Uuid) -> bool {
        match &self.devices {
            VisibleDevices::List(names) if names.iter().all(|name| name.uuid.is_some()) => {
                names.iter().any(|name| name.uuid.as_ref() == Some(wanted))
            }
            _ => true,
        }
    }
}

impl DeviceName {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), uuid: uuid(text) }
    }
}

/// Parses the UUID of a GPU or MIG device, with its prefix.
#[must_use]
pub fn uuid(text: &str) -> Option<Uuid> {
    (text.starts_with("GPU-") || text.starts_with("MIG-")).then(|| Uuid::parse(text)).flatten()
}

/// A GPU that the container may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name in `NVIDIA_VISIBLE_DEVICES`.
    pub name: String,
    /// Its UUID, where known.
    pub uuid: Option<Uuid>,
    /// Its total memory in bytes, where known.
    pub memory: Option<u64>,
    /// Its entry in the inventory; for a MIG device, the entry of its GPU.
    pub gpu: Option<&'a Gpu>,
}

/// Returns the GPUs that the container may use, in its own order. `None` if they cannot be determined.
///
/// `minors` are the numbers of the device nodes `/dev/nvidia<minor>` that the container has.
#[must_use]
pub fn candidates<'a>(visible: &Visible, minors: &[u32], inventory: Option<&'a Inventory>) -> Option<Vec<Candidate<'a>>> {
    let whole = |gpu: &'a Gpu| Candidate { name: gpu.uuid.clone(), uuid: uuid(&gpu.uuid), memory: Some(gpu.memory), gpu: Some(gpu) };
    match &visible.devices {
        VisibleDevices::List(names) => Some(names.iter().map(|name| find(name, inventory)).collect()),
        VisibleDevices::All => Some(inventory?.gpus.iter().map(whole).collect()),
        VisibleDevices::Unset | VisibleDevices::Nothing if !minors.is_empty() => {
            let by_minor = |minor: &u32| inventory?.gpus.iter().find(|gpu| gpu.minor == Some(*minor)).map(whole);
            minors.iter().map(by_minor).collect()
        }
        VisibleDevices::Unset | VisibleDevices::Nothing => None,
    }
}

fn find<'a>(name: &DeviceName, inventory: Option<&'a Inventory>) -> Candidate<'a> {
    let unknown = Candidate { name: name.text.clone(), uuid: name.uuid, memory: None, gpu: None };
    let Some(inventory) = inventory else { return unknown };
    // CDI's qualified name, `nvidia.com/gpu=0`.
    let short = name.text.rsplit_once('=').map_or(name.text.as_str(), |(_, short)| short);
    for gpu in &inventory.gpus {
        if gpu.uuid == short || gpu.index.to_string() == short {
            return Candidate { uuid: uuid(&gpu.uuid), memory: Some(gpu.memory), gpu: Some(gpu), ..unknown };
        }
        for mig in &gpu.mig {
            if mig.uuid == short || format!("{}:{}", gpu.index, mig.index) == short {
                return Candidate { uuid: uuid(&mig.uuid), memory: Some(mig.memory), gpu: Some(gpu), ..unknown };
            }
        }
    }
    unknown
}

impl Choice {
    /// Returns whether nothing is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether only the number of GPUs is selected.
    #[must_use]
    pub fn is_only_a_count(&self) -> bool {
        self.count.is_some() && Self { count: None, ..self.clone() }.is_empty()
    }

    /// Returns the setting that messages about the whole choice name: the count if there is one, else any.
    fn first_setting(&self) -> Option<&Setting> {
        let lists = [&self.use_uuid, &self.nouse_uuid, &self.use_type, &self.nouse_type];
        let of_lists = lists.into_iter().flatten().map(|list| &list.setting).next();
        self.count.as_ref().map(|count| &count.setting).or(of_lists)
    }

    /// Selects among `candidates`, in their order.
    ///
    /// # Errors
    /// A UUID is unknown, the type of a GPU is unknown, or fewer GPUs match than are requested. The message lists the candidates.
    pub fn select<'a>(&self, candidates: Option<Vec<Candidate<'a>>>) -> Result<Option<Vec<Candidate<'a>>>> {
        let Some(setting) = self.first_setting() else { return Ok(candidates) };
        let Some(candidates) = candidates else {
            return Err(setting.refused(
                "a container whose GPUs are known (there is no inventory of this machine's GPUs, and NVIDIA_VISIBLE_DEVICES does not \
                 list them)",
            ));
        };
        for list in [&self.use_uuid, &self.nouse_uuid].into_iter().flatten() {
            let is_known = |wanted: &String| candidates.iter().any(|gpu| gpu.has_uuid(wanted));
            if let Some(unknown) = list.value.iter().find(|wanted| !is_known(wanted)) {
                return Err(too_few(&list.setting, format!("{} is unknown, so no GPU matches", one_line(unknown)), &candidates));
            }
        }
        let mut matching = Vec::new();
        for gpu in &candidates {
            if self.accepts(gpu)? {
                matching.push(gpu.clone());
            }
        }
        let wanted = self.count.as_ref().map_or(1, |count| count.value as usize);
        if matching.len() < wanted {
            let found = match matching.len() {
                0 => "no GPU matches".to_owned(),
                1 => "only 1 GPU matches".to_owned(),
                count => format!("only {count} GPUs match"),
            };
            return Err(too_few(setting, found, &candidates));
        }
        if self.count.is_some() {
            matching.truncate(wanted);
        }
        Ok(Some(matching))
    }

    fn accepts(&self, gpu: &Candidate<'_>) -> Result<bool> {
        let lists_uuid = |list: &Sourced<Vec<String>>| list.value.iter().any(|wanted| gpu.has_uuid(wanted));
        let lists_type = |list: &Sourced<Vec<String>>| match gpu.gpu {
            Some(known) => {
                let name = known.name.to_lowercase();
                Ok(list.value.iter().any(|part| name.contains(part.as_str())))
            }
            None => Err(list.setting.refused(format!(
                "GPUs whose product names are known, and that of {} is not (there is no inventory of this machine's GPUs)",
                one_line(&gpu.name)
            ))),
        };
        let by_uuid = self.use_uuid.as_ref().is_none_or(lists_uuid) && !self.nouse_uuid.as_ref().is_some_and(lists_uuid);
        let has_wanted_type = self.use_type.as_ref().map(lists_type).transpose()?.unwrap_or(true);
        let has_unwanted_type = self.nouse_type.as_ref().map(lists_type).transpose()?.unwrap_or(false);
        Ok(by_uuid && has_wanted_type && !has_unwanted_type)
    }
}

impl Candidate<'_> {
    /// Returns the machine's n-th GPU, of which only the index is known.
    #[must_use]
    pub fn nth(index: u32) -> Self {
        Self { name: index.to_string(), uuid: None, memory: None, gpu: None }
    }

    /// Formats its UUID with the prefix `GPU-`, or `MIG-` for a MIG device.
    #[must_use]
    pub fn format_uuid(&self, uuid: Uuid) -> String {
        let whole = uuid.to_string();
        let is_mig = self.name.starts_with("MIG-") || self.gpu.is_some_and(|gpu| gpu.uuid != whole);
        if is_mig { whole.replacen("GPU-", "MIG-", 1) } else { whole }
    }

    /// Returns whether `wanted` is its UUID, or the UUID of the GPU that the MIG device is on.
    fn has_uuid(&self, wanted: &str) -> bool {
        let is_wanted = |known: Option<Uuid>| known.is_some() && known == uuid(wanted);
        is_wanted(self.uuid) || is_wanted(self.gpu.and_then(|gpu| uuid(&gpu.uuid)))
    }
}

fn too_few(setting: &Setting, matching: String, candidates: &[Candidate<'_>]) -> Error {
    let each: Vec<String> = candidates.iter().map(|known| known.gpu.map_or_else(|| one_line(&known.name), Gpu::describe)).collect();
    let available = if each.is_empty() { "no GPU".to_owned() } else { each.join(", ") };
    Error::Devices { setting: setting.clone(), matching, available }
}

#[cfg(test)]
mod tests;
