//! libcuda's side of the resource manager: the objects that it makes for a context.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

use super::abi::{self, Alloc, Control, Escape, Free, GroupParams};
use crate::objects::ChannelGroup;

/// Channels of a compute group and of a copy group.
const CHANNELS: (usize, usize) = (8, 4);
/// Handle before that of the first object.
const FIRST_HANDLE: u32 = 0x5c00_0000;

/// Objects of this process that outlive its contexts, made when they are first needed.
#[derive(Default)]
pub struct Client {
    /// Stands for `/dev/nvidiactl`.
    file: Option<File>,
    root: u32,
    /// Number of handles used.
    handles: u32,
    /// Device objects by physical GPU index. Each has a subdevice.
    devices: HashMap<usize, u32>,
}

impl Client {
    /// Makes the channel groups of a context, as far as the kernel lets it.
    pub fn open_context(&mut self, gpu: usize) -> Vec<ChannelGroup> {
        self.try_open_context(gpu).unwrap_or_default()
    }

    fn try_open_context(&mut self, gpu: usize) -> Option<Vec<ChannelGroup>> {
        let device = self.device(gpu)?;
        let engines = std::iter::once((abi::ENGINE_COMPUTE, CHANNELS.0)).chain(abi::ENGINES_COPY.map(|engine| (engine, CHANNELS.1)));
        engines.map(|(engine, count)| self.open_group(device, engine, count)).collect()
    }

    /// Frees the channels and groups of a context.
    pub fn close_context(&mut self, groups: &[ChannelGroup]) {
        for group in groups {
            group.channels.iter().for_each(|&channel| self.free(group.handle, channel));
            self.free(group.parent, group.handle);
        }
    }

    fn open_group(&mut self, device: u32, engine: u32, count: usize) -> Option<ChannelGroup> {
        let mut params = GroupParams { engine, ..GroupParams::default() };
        let handle = self.allocate(device, abi::CLASS_GROUP, Some(&mut params))?;
        if engine == abi::ENGINE_COMPUTE {
            self.set_slice(handle);
        }
        let channels = (0..count).map(|_| self.allocate(handle, abi::CLASS_CHANNEL, None::<&mut ()>)).collect::<Option<Vec<_>>>()?;
        Some(ChannelGroup { parent: device, handle, channels })
    }

    fn device(&mut self, gpu: usize) -> Option<u32> {
        if let Some(&device) = self.devices.get(&gpu) {
            return Some(device);
        }
        if self.file.is_none() {
            self.file = Some(File::options().read(true).write(true).open("/dev/null").ok()?);
            self.root = self.make(Alloc { root: 0, parent: 0, new: 0, ..alloc(abi::CLASS_ROOT) })?;
        }
        let mut params = [0_u32; 14];
        params[0] = u32::try_from(gpu).ok()?;
        let device = self.allocate(self.root, abi::CLASS_DEVICE, Some(&mut params))?;
        self.allocate(device, abi::CLASS_SUBDEVICE, Some(&mut 0_u32))?;
        self.devices.insert(gpu, device);
        Some(device)
    }

    /// Makes an object and returns its handle.
    fn allocate<T>(&mut self, parent: u32, class: u32, params: Option<&mut T>) -> Option<u32> {
        self.handles += 1;
        let params_size = if params.is_some() { size_of::<T>() as u32 } else { 0 };
        let params = params.map_or(std::ptr::null_mut(), |params| std::ptr::from_mut(params).cast::<c_void>());
        self.make(Alloc { root: self.root, parent, new: FIRST_HANDLE + self.handles, params, params_size, ..alloc(class) })
    }

    fn make(&self, mut request: Alloc) -> Option<u32> {
        (self.call(&mut request) && request.status == abi::status::OK).then_some(request.new)
    }

    /// Sets the slice of a compute group. libcuda works if that is refused.
    fn set_slice(&self, object: u32) {
        let mut slice_us = abi::COMPUTE_SLICE_US;
        self.call(&mut Control {
            client: self.root,
            object,
            command: abi::SET_TIMESLICE,
            flags: 0,
            params: (&raw mut slice_us).cast(),
            params_size: 8,
            status: 0,
        });
    }

    fn free(&self, parent: u32, old: u32) {
        self.call(&mut Free { root: self.root, parent, old, status: 0 });
    }

    /// Makes an ioctl. Returns whether it was answered.
    fn call<T: Escape>(&self, parameters: &mut T) -> bool {
        let Some(file) = &self.file else { return false };
        // SAFETY: the parameters have the request's size, and what they point to lives through the call.
        unsafe { libc::ioctl(file.as_raw_fd(), abi::request::<T>(), std::ptr::from_mut(parameters)) == 0 }
    }
}

fn alloc(class: u32) -> Alloc {
    Alloc { root: 0, parent: 0, new: 0, class, params: std::ptr::null_mut(), rights: 0, params_size: 0, flags: 0, status: 0, padding: 0 }
}
