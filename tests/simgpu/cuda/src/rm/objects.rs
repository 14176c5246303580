//! Objects of the resource manager that this process made.

use std::collections::BTreeMap;

use super::abi::{self, Alloc, DisableChannels, status};

/// Result of an operation, or its `NV_STATUS`.
pub type RmResult<T = ()> = Result<T, u32>;

/// First handle of a client. The kernel chooses them.
const FIRST_CLIENT: u32 = 0xc1d0_0000;
/// First handle of another object whose handle the kernel chooses.
const FIRST_CHOSEN: u32 = 0xcaf0_0000;

/// What an object is. All below a device belong to the GPU with this physical index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Root,
    Device { gpu: usize },
    Subdevice { gpu: usize },
    Group { gpu: usize, engine: u32, slice_us: u64 },
    Channel { gpu: usize, engine: u32, is_off: bool },
}

struct Object {
    parent: u32,
    kind: Kind,
}

/// All objects, by client and handle.
#[derive(Default)]
pub struct Objects {
    all: BTreeMap<(u32, u32), Object>,
    /// Number of handles chosen.
    chosen: u32,
}

impl Objects {
    pub const fn new() -> Objects {
        Objects { all: BTreeMap::new(), chosen: 0 }
    }

    /// Makes an object of a process whose clients have numbers that are `process` modulo 1024. `word` returns a word of the parameters.
    /// Returns the handle.
    pub fn allocate(&mut self, request: &Alloc, process: u32, word: impl Fn(usize) -> RmResult<u32>) -> RmResult<u32> {
        if request.class == abi::CLASS_ROOT {
            self.chosen += 1;
            let handle = FIRST_CLIENT | self.chosen << 10 | process & 1023;
            self.all.insert((handle, handle), Object { parent: handle, kind: Kind::Root });
            return Ok(handle);
        }
        let kind = match (request.class, self.kind(request.root, request.parent)?) {
            (abi::CLASS_DEVICE, Kind::Root) => Kind::Device { gpu: word(0)? as usize },
            (abi::CLASS_SUBDEVICE, Kind::Device { gpu }) => Kind::Subdevice { gpu },
            (abi::CLASS_GROUP, Kind::Device { gpu }) => {
                let engine = word(3)?;
                let slice_us = if engine == abi::ENGINE_COMPUTE { abi::COMPUTE_SLICE_US } else { abi::COPY_SLICE_US };
                Kind::Group { gpu, engine, slice_us }
            }
            (abi::CLASS_CHANNEL, Kind::Group { gpu, engine, .. }) => Kind::Channel { gpu, engine, is_off: false },
            (abi::CLASS_DEVICE | abi::CLASS_SUBDEVICE | abi::CLASS_GROUP | abi::CLASS_CHANNEL, _) => return Err(status::INVALID_PARENT),
            _ => return Err(status::INVALID_CLASS),
        };
        let handle = if request.new == 0 {
            self.chosen += 1;
            FIRST_CHOSEN + self.chosen
        } else {
            request.new
        };
        if self.all.contains_key(&(request.root, handle)) {
            return Err(status::INVALID_ARGUMENT);
        }
        self.all.insert((request.root, handle), Object { parent: request.parent, kind });
        Ok(handle)
    }

    /// Frees an object and all below it.
    pub fn free(&mut self, client: u32, handle: u32) -> RmResult {
        self.kind(client, handle)?;
        self.all.remove(&(client, handle));
        let is_below = |object: &Object| object.parent == handle;
        let below = self.all.iter().filter(|((owner, _), object)| *owner == client && is_below(object));
        let below = below.map(|((_, handle), _)| *handle).collect::<Vec<_>>();
        for handle in below {
            // One that is gone was below another.
            let _ = self.free(client, handle);
        }
        Ok(())
    }

    /// Returns what an object is.
    pub fn kind(&self, client: u32, handle: u32) -> RmResult<Kind> {
        if !self.all.contains_key(&(client, client)) {
            return Err(status::INVALID_CLIENT);
        }
        self.all.get(&(client, handle)).map(|object| object.kind).ok_or(status::NOT_FOUND)
    }

    /// Returns the longest slice of the groups that copy on a GPU, µs; 0 if there is none.
    pub fn copy_slice_us(&self, on: usize) -> u64 {
        let slice = |object: &Object| match object.kind {
            Kind::Group { gpu, engine, slice_us } if gpu == on && engine != abi::ENGINE_COMPUTE => Some(slice_us),
            _ => None,
        };
        self.all.values().filter_map(slice).max().unwrap_or(0)
    }

    /// Sets the slice of a group, µs. Returns its GPU and engine.
    pub fn set_slice(&mut self, client: u32, handle: u32, us: u64) -> RmResult<(usize, u32)> {
        self.kind(client, handle)?;
        match self.all.get_mut(&(client, handle)).map(|object| &mut object.kind) {
            Some(Kind::Group { gpu, engine, slice_us }) if us <= abi::LONGEST_SLICE_US => {
                *slice_us = us;
                Ok((*gpu, *engine))
            }
            Some(Kind::Group { .. }) => Err(status::INVALID_ARGUMENT),
            _ => Err(status::NOT_SUPPORTED),
        }
    }

    /// Switches channels of a GPU off or on: all that are listed, or none.
    pub fn disable(&mut self, gpu: usize, list: &DisableChannels) -> RmResult {
        let count = list.count as usize;
        let pairs = list.clients.iter().copied().zip(list.channels).take(count).collect::<Vec<_>>();
        if count > pairs.len() {
            return Err(status::INVALID_ARGUMENT);
        }
        for &(client, channel) in &pairs {
            match self.kind(client, channel)? {
                Kind::Channel { gpu: its_gpu, .. } if its_gpu == gpu => {}
                _ => return Err(status::INVALID_ARGUMENT),
            }
        }
        for pair in pairs {
            if let Some(Object { kind: Kind::Channel { is_off, .. }, .. }) = self.all.get_mut(&pair) {
                *is_off = list.disable != 0;
            }
        }
        Ok(())
    }

    /// Returns whether the process can compute nothing on a GPU: all its channels for that are off.
    pub fn is_off(&self, gpu: usize) -> bool {
        let kinds = self.all.values().map(|object| object.kind);
        let mut computing = kinds.filter_map(|kind| match kind {
            Kind::Channel { gpu: its_gpu, engine: abi::ENGINE_COMPUTE, is_off } if its_gpu == gpu => Some(is_off),
            _ => None,
        });
        computing.next().is_some_and(|first| first && computing.all(|is_off| is_off))
    }
}
