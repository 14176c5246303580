//! Which GPUs a container may have, and which of them it wants.

use vgpu_region::uuid::Uuid;

use crate::error::{Error, Result, one_line};
use crate::inventory::{Gpu, Inventory};
use crate::setting::{Said, Setting};

/// Which of its GPUs a container wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// How many.
    pub count: Option<Said<u32>>,
    /// Only these.
    pub use_uuid: Option<Said<Vec<String>>>,
    /// None of these.
    pub nouse_uuid: Option<Said<Vec<String>>>,
    /// Only those whose product name contains one of these (in lower case).
    pub use_type: Option<Said<Vec<String>>>,
    /// None whose product name contains one of these (in lower case).
    pub nouse_type: Option<Said<Vec<String>>>,
}

/// How a GPU was named to the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As it was written.
    pub text: String,
    /// Its UUID, if it was named by that.
    pub uuid: Option<Uuid>,
}

/// What `NVIDIA_VISIBLE_DEVICES` gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// It is not set; GPUs may come in other ways.
    #[default]
    Unsaid,
    /// `none`, `void`, or empty.
    Nothing,
    /// `all`.
    All,
    /// Single ones, in this order.
    List(Vec<Name>),
}

/// The GPUs a container may have, as far as its environment tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// What `NVIDIA_VISIBLE_DEVICES` gives.
    pub given: Given,
    /// The order in which another device plugin counts them.
    pub order: Vec<Uuid>,
    /// Whether the variable says something else than what is meant, so that it has to be said anew.
    pub replaced: bool,
}

impl Visible {
    /// Reads a value of `NVIDIA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn parse(value: &str) -> Self {
        let given = match value {
            "" | "none" | "void" => Given::Nothing,
            "all" => Given::All,
            list => Given::List(list.split(',').map(Name::new).collect()),
        };
        Self { given, ..Self::default() }
    }

    /// Takes the order from a comma list of UUIDs, where no other order is known.
    pub fn order_by(&mut self, list: &str) {
        if self.order.is_empty() {
            self.order = list.split(',').map_while(uuid).collect();
        }
    }

    /// Whether the environment gives the container a GPU.
    #[must_use]
    pub fn gives(&self) -> bool {
        matches!(self.given, Given::All | Given::List(_))
    }

    /// Whether the GPU with this UUID may be the container's, as far as is known.
    #[must_use]
    pub fn may_have(&self, wanted: &Uuid) -> bool {
        match &self.given {
            Given::List(names) if names.iter().all(|name| name.uuid.is_some()) => {
                names.iter().any(|name| name.uuid.as_ref() == Some(wanted))
            }
            _ => true,
        }
    }
}

impl Name {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), uuid: uuid(text) }
    }
}

/// A GPU's or MIG device's UUID, with its prefix.
#[must_use]
pub fn uuid(text: &str) -> Option<Uuid> {
    (text.starts_with("GPU-") || text.starts_with("MIG-")).then(|| Uuid::parse(text)).flatten()
}

/// A GPU that the container may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// How `NVIDIA_VISIBLE_DEVICES` can name it.
    pub name: String,
    /// Its UUID, where known.
    pub uuid: Option<Uuid>,
    /// All of its memory in bytes, where known.
    pub memory: Option<u64>,
    /// What the inventory says of it or, for a MIG device, of the GPU that it is on.
    pub gpu: Option<&'a Gpu>,
}

/// The GPUs that the container may have, in its own order; `None` where nobody can tell.
#[must_use]
pub fn candidates<'a>(visible: &Visible, minors: &[u32], inventory: Option<&'a Inventory>) -> Option<Vec<Candidate<'a>>> {
    let whole = |gpu: &'a Gpu| Candidate { name: gpu.uuid.clone(), uuid: uuid(&gpu.uuid), memory: Some(gpu.memory), gpu: Some(gpu) };
    match &visible.given {
        Given::List(names) => Some(names.iter().map(|name| find(name, inventory)).collect()),
        Given::All => Some(inventory?.gpus.iter().map(whole).collect()),
        Given::Unsaid | Given::Nothing if !minors.is_empty() => {
            let of_minor = |minor: &u32| inventory?.gpus.iter().find(|gpu| gpu.minor == Some(*minor)).map(whole);
            minors.iter().map(of_minor).collect()
        }
        Given::Unsaid | Given::Nothing => None,
    }
}

fn find<'a>(name: &Name, inventory: Option<&'a Inventory>) -> Candidate<'a> {
    let unknown = Candidate { name: name.text.clone(), uuid: name.uuid, memory: None, gpu: None };
    let Some(inventory) = inventory else { return unknown };
    // CDI's form of naming, `nvidia.com/gpu=0`, names the same things.
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
    /// Whether nothing was wished for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether only a number was wished for.
    #[must_use]
    pub fn is_only_a_count(&self) -> bool {
        self.count.is_some() && Self { count: None, ..self.clone() }.is_empty()
    }

    /// The setting to name in a message about the whole choice: the count if there is one, else any.
    fn first_setting(&self) -> Option<&Setting> {
        let lists = [&self.use_uuid, &self.nouse_uuid, &self.use_type, &self.nouse_type];
        let of_lists = lists.into_iter().flatten().map(|said| &said.by).next();
        self.count.as_ref().map(|count| &count.by).or(of_lists)
    }

    /// Picks among `candidates`, keeping their order. Those wanted by UUID come first only if a count has to choose.
    ///
    /// # Errors
    /// An unknown UUID, a type that nothing is known about, or fewer suitable GPUs than asked for; it lists what there is.
    pub fn pick<'a>(&self, candidates: Option<Vec<Candidate<'a>>>) -> Result<Option<Vec<Candidate<'a>>>> {
        let Some(by) = self.first_setting() else { return Ok(candidates) };
        let Some(candidates) = candidates else {
            return Err(by.refused(
                "one that can be checked: which GPUs this container may have is not known (no inventory of \
                                   this machine's GPUs, and no list of them in NVIDIA_VISIBLE_DEVICES)",
            ));
        };
        for said in [&self.use_uuid, &self.nouse_uuid].into_iter().flatten() {
            let known = |wanted: &String| candidates.iter().any(|gpu| gpu.is(wanted));
            if let Some(unknown) = said.value.iter().find(|wanted| !known(wanted)) {
                return Err(lacking(&said.by, format!("{} is unknown, so none", one_line(unknown)), &candidates));
            }
        }
        let mut suitable = Vec::new();
        for gpu in &candidates {
            if self.suits(gpu)? {
                suitable.push(gpu.clone());
            }
        }
        let wanted = self.count.as_ref().map_or(1, |count| count.value as usize);
        if suitable.len() < wanted {
            let found = if suitable.is_empty() { "none is".to_owned() } else { format!("only {} are", suitable.len()) };
            return Err(lacking(by, found, &candidates));
        }
        if self.count.is_some() {
            suitable.truncate(wanted);
        }
        Ok(Some(suitable))
    }

    fn suits(&self, gpu: &Candidate<'_>) -> Result<bool> {
        let listed = |said: &Said<Vec<String>>| said.value.iter().any(|wanted| gpu.is(wanted));
        let of_type = |said: &Said<Vec<String>>| match gpu.gpu {
            Some(known) => {
                let name = known.name.to_lowercase();
                Ok(said.value.iter().any(|part| name.contains(part.as_str())))
            }
            None => Err(said.by.refused(format!(
                "a type only where the product of every GPU is known, and that of {} is not (no inventory of this machine's GPUs)",
                one_line(&gpu.name)
            ))),
        };
        let wanted = self.use_uuid.as_ref().is_none_or(listed) && !self.nouse_uuid.as_ref().is_some_and(listed);
        let wanted_type = self.use_type.as_ref().map(of_type).transpose()?.unwrap_or(true);
        let unwanted_type = self.nouse_type.as_ref().map(of_type).transpose()?.unwrap_or(false);
        Ok(wanted && wanted_type && !unwanted_type)
    }
}

impl Candidate<'_> {
    /// The machine's n-th GPU, of which nothing else is known.
    #[must_use]
    pub fn nth(index: u32) -> Self {
        Self { name: index.to_string(), uuid: None, memory: None, gpu: None }
    }

    /// Its UUID in the form in which it was given: of a whole GPU or of a MIG device.
    #[must_use]
    pub fn printed(&self, uuid: Uuid) -> String {
        let whole = uuid.to_string();
        let is_mig = self.name.starts_with("MIG-") || self.gpu.is_some_and(|gpu| gpu.uuid != whole);
        if is_mig { whole.replacen("GPU-", "MIG-", 1) } else { whole }
    }

    fn is(&self, wanted: &str) -> bool {
        let same = |known: Option<Uuid>| known.is_some() && known == uuid(wanted);
        same(self.uuid) || same(self.gpu.and_then(|gpu| uuid(&gpu.uuid)))
    }
}

fn lacking(by: &Setting, suitable: String, candidates: &[Candidate<'_>]) -> Error {
    let each: Vec<String> = candidates.iter().map(|known| known.gpu.map_or_else(|| one_line(&known.name), Gpu::describe)).collect();
    let available = if each.is_empty() { "no GPU".to_owned() } else { each.join(", ") };
    Error::Devices { setting: by.clone(), suitable, available }
}

#[cfg(test)]
mod tests;
