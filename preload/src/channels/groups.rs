//! The process's channel groups, and the controls on them. Those that compute are recorded; those that copy only get a short slice.
//!
//! Measured on an H100 (tests/gpu/results/hardware-scheduler.md): a slice is set in 0.2 ms and applies from the group's next one; channels
//! are off within 0.6 ms, in the middle of a kernel, and on within 0.4 ms.

use core::cell::UnsafeCell;
use core::ffi::c_int;

use vgpu_cuda_abi::resource_manager::{self as rm, ObjectHandle, RmStatus};
use vgpu_gpu_limiter::tuning::SHORT_SLICE_US;
use vgpu_region::MAX_GPUS;
use vgpu_region::uuid::Uuid;

use crate::channels::control::control;
use crate::os::lock::{Exclusive, Held};

/// Most groups that are controlled: one for each context.
const MAX_GROUPS: usize = 64;
/// Most channels of a group. CUDA 13 makes eight.
const CHANNELS: usize = 16;
/// Most subdevices: one for each GPU and client.
const SUBDEVICES: usize = 2 * MAX_GPUS;
/// Time slice that `libcuda` gives its groups that compute, in microseconds (driver 580).
const DRIVER_SLICE_US: u32 = 2_048;
/// Longest wait for another thread, in nanoseconds. A control takes a millisecond. A thread that loses the lock by this would still use the
/// table, so it is longer than any control.
const LOCK_TIMEOUT_NS: u64 = 60_000_000_000;

/// A GPU, as an object of a client.
#[derive(Clone, Copy)]
struct Subdevice {
    /// The client's open file.
    descriptor: c_int,
    /// The client; 0 in an unused place.
    client: ObjectHandle,
    /// The parent.
    device: ObjectHandle,
    /// The object.
    object: ObjectHandle,
    /// UUID of the GPU.
    uuid: Uuid,
}

/// A compute channel group.
#[derive(Clone, Copy)]
struct Group {
    /// The client's open file.
    descriptor: c_int,
    /// The client; 0 in an unused place.
    client: ObjectHandle,
    /// The parent.
    device: ObjectHandle,
    /// The object.
    object: ObjectHandle,
    /// Its channels.
    channels: [ObjectHandle; CHANNELS],
    /// Number of channels.
    count: usize,
    /// Its channels are off.
    is_off: bool,
    /// Slice that was set last, in microseconds; 0 is `libcuda`'s own.
    slice_us: u32,
}

/// Groups and GPUs of this process. A forked child starts with an empty table.
struct Table {
    /// Process that it belongs to.
    process: libc::pid_t,
    /// The GPUs.
    subdevices: [Subdevice; SUBDEVICES],
    /// The groups.
    groups: [Group; MAX_GROUPS],
    /// Slice that each GPU's groups shall have; the GPU's UUID, and microseconds.
    slices: [(Uuid, u32); MAX_GPUS],
}

/// An unused place.
const NO_SUBDEVICE: Subdevice = Subdevice { descriptor: -1, client: 0, device: 0, object: 0, uuid: Uuid([0; 16]) };
/// An unused place.
const NO_GROUP: Group =
    Group { descriptor: -1, client: 0, device: 0, object: 0, channels: [0; CHANNELS], count: 0, is_off: false, slice_us: 0 };
/// A table without entries.
const EMPTY: Table =
    Table { process: 0, subdevices: [NO_SUBDEVICE; SUBDEVICES], groups: [NO_GROUP; MAX_GROUPS], slices: [(Uuid([0; 16]), 0); MAX_GPUS] };

/// The table, and the lock that its user holds.
struct Shared(UnsafeCell<Table>);

// SAFETY: `with_table` is the only access, and holds the lock.
unsafe impl Sync for Shared {}

/// The table of this process.
static TABLE: Shared = Shared(UnsafeCell::new(EMPTY));
/// Lock of [`TABLE`].
static LOCK: Exclusive = Exclusive::new();

/// Runs `body` with the table.
fn with_table<T>(body: impl FnOnce(&mut Table) -> T) -> T {
    let _held: Held<'_> = LOCK.take(LOCK_TIMEOUT_NS);
    // SAFETY: the lock is held, and `body`, which is in this file, does not come back here.
    let table = unsafe { &mut *TABLE.0.get() };
    // SAFETY: the call takes nothing.
    let process = unsafe { libc::getpid() };
    if table.process != process {
        *table = Table { process, ..EMPTY };
    }
    body(table)
}

/// Result of a control of a GPU's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of them were controlled.
    Done,
    /// The process has no group on this GPU that this library has seen.
    NoGroups,
    /// The driver refused, with this status; `u32::MAX` if the kernel did.
    Refused(RmStatus),
}

impl Subdevice {
    /// Asks the driver for the GPU's UUID; all zero if it does not tell.
    fn query_uuid(&self) -> Uuid {
        let mut id = rm::GpuId { index: 0, flags: rm::GpuId::BINARY, length: 0, data: [0; 256] };
        let status = control(self.descriptor, (self.client, self.object), rm::GET_GPU_ID, &mut id);
        match id.data.first_chunk::<16>() {
            Some(&bytes) if status == rm::RM_OK && id.length == 16 => Uuid(bytes),
            _ => Uuid::default(),
        }
    }
}

impl Group {
    /// Returns true for a group of this GPU.
    fn is_on(&self, subdevices: &[Subdevice], uuid: Uuid) -> bool {
        self.subdevice(subdevices).is_some_and(|subdevice| subdevice.uuid == uuid)
    }

    /// Returns the group's GPU.
    fn subdevice<'a>(&self, subdevices: &'a [Subdevice]) -> Option<&'a Subdevice> {
        subdevices.iter().find(|subdevice| self.client != 0 && subdevice.client == self.client && subdevice.device == self.device)
    }

    /// Switches the group's channels off, or on again.
    fn switch(&mut self, subdevices: &[Subdevice], off: bool) -> RmStatus {
        let Some(subdevice) = self.subdevice(subdevices).copied() else { return u32::MAX };
        let mut call = rm::DisableChannels {
            disable: off.into(),
            count: self.count as u32,
            only_scheduling: 0,
            rewind: 0,
            event: 0,
            clients: [self.client; rm::MAX_CHANNELS],
            channels: [0; rm::MAX_CHANNELS],
        };
        call.channels.iter_mut().zip(&self.channels).for_each(|(place, &channel)| *place = channel);
        let status = control(self.descriptor, (subdevice.client, subdevice.object), rm::DISABLE_CHANNELS, &mut call);
        if status == rm::RM_OK {
            self.is_off = off;
        }
        status
    }

    /// Sets the group's time slice; 0 is the driver's own.
    fn set_slice(&mut self, slice_us: u32) -> RmStatus {
        let mut value = u64::from(if slice_us == 0 { DRIVER_SLICE_US } else { slice_us });
        let status = control(self.descriptor, (self.client, self.object), rm::SET_TIMESLICE, &mut value);
        if status == rm::RM_OK {
            self.slice_us = slice_us;
        }
        status
    }
}

/// Records a client's GPU.
pub fn add_subdevice(descriptor: c_int, client: ObjectHandle, device: ObjectHandle, object: ObjectHandle) {
    with_table(|table| {
        if let Some(place) = table.subdevices.iter_mut().find(|place| place.client == 0) {
            *place = Subdevice { descriptor, client, device, object, uuid: Uuid::default() };
            place.uuid = place.query_uuid();
        }
    });
}

/// Records a compute group.
pub fn add_group(descriptor: c_int, client: ObjectHandle, device: ObjectHandle, object: ObjectHandle) {
    with_table(|table| {
        if let Some(place) = table.groups.iter_mut().find(|place| place.client == 0) {
            *place = Group { descriptor, client, device, object, ..NO_GROUP };
        }
    });
}

/// Gives a group of copies a short slice. The driver changes page tables with the same engine: what an allocation of another process waits
/// for is this slice, 1 ms by default. Where the driver refuses, that stays.
pub fn shorten_slice(descriptor: c_int, client: ObjectHandle, object: ObjectHandle) {
    _ = control(descriptor, (client, object), rm::SET_TIMESLICE, &mut u64::from(SHORT_SLICE_US));
}

/// Records a channel, if its parent is a recorded group.
pub fn add_channel(client: ObjectHandle, parent: ObjectHandle, channel: ObjectHandle) {
    with_table(|table| {
        if let Some(group) = table.groups.iter_mut().find(|group| group.client == client && group.object == parent)
            && let Some(place) = group.channels.get_mut(group.count)
        {
            *place = channel;
            group.count += 1;
        }
    });
}

/// Called when `libcuda` has set a group's slice, as it does once for a new one: sets the one that it shall have.
pub fn slice_was_set(client: ObjectHandle, object: ObjectHandle) {
    with_table(|table| {
        let Table { subdevices, groups, slices, .. } = table;
        let Some(group) = groups.iter_mut().find(|group| group.client == client && group.object == object) else { return };
        group.slice_us = 0;
        let wanted = slices.iter().find(|(uuid, _)| *uuid != Uuid::default() && group.is_on(subdevices, *uuid));
        if let Some(&(_, slice_us)) = wanted.filter(|(_, slice_us)| *slice_us != 0) {
            group.set_slice(slice_us);
        }
    });
}

/// Called before an object is freed, with everything below it. Switches its channels on, and forgets them.
pub fn forget(client: ObjectHandle, object: ObjectHandle) {
    with_table(|table| {
        let Table { subdevices, groups, .. } = table;
        for group in groups.iter_mut().filter(|group| group.client == client) {
            let channel = group.channels.iter().take(group.count).position(|&channel| channel == object);
            let is_whole = [group.client, group.device, group.object].contains(&object);
            if group.is_off && (is_whole || channel.is_some()) {
                group.switch(subdevices, false);
            }
            if is_whole {
                *group = NO_GROUP;
            } else if let Some(place) = channel {
                group.count -= 1;
                let last = group.channels.get(group.count).copied().unwrap_or_default();
                group.channels.get_mut(place).into_iter().for_each(|channel| *channel = last);
            }
        }
        for subdevice in subdevices.iter_mut().filter(|subdevice| subdevice.client == client) {
            if [subdevice.client, subdevice.device, subdevice.object].contains(&object) {
                *subdevice = NO_SUBDEVICE;
            }
        }
    });
}

/// Applies a control to all groups of a GPU that need it.
fn each_group(uuid: Uuid, needs: impl Fn(&Group) -> bool, mut apply: impl FnMut(&mut Group, &[Subdevice]) -> RmStatus) -> Outcome {
    with_table(|table| {
        let Table { subdevices, groups, .. } = table;
        let mut outcome = Outcome::NoGroups;
        for group in groups.iter_mut().filter(|group| group.is_on(subdevices, uuid)) {
            let status = if needs(group) { apply(group, subdevices) } else { rm::RM_OK };
            outcome = match (status, outcome) {
                (rm::RM_OK, Outcome::Refused(_)) => outcome,
                (rm::RM_OK, _) => Outcome::Done,
                (status, _) => Outcome::Refused(status),
            };
        }
        outcome
    })
}

/// Switches the channels of the process's groups on a GPU off, or on again. Returns once the GPU runs none of them.
pub fn switch(uuid: Uuid, off: bool) -> Outcome {
    each_group(uuid, |group| group.is_off != off, |group, subdevices| group.switch(subdevices, off))
}

/// Probe: switches on channels that are on, to learn whether the driver allows it.
pub fn try_switch(uuid: Uuid) -> Outcome {
    each_group(uuid, |group| !group.is_off, |group, subdevices| group.switch(subdevices, false))
}

/// Sets the time slice of the process's groups on a GPU, also of later ones. 0 is the driver's own.
pub fn set_slice(uuid: Uuid, slice_us: u32) -> Outcome {
    with_table(|table| {
        let place = table.slices.iter().position(|(known, _)| *known == uuid);
        let place = place.or_else(|| table.slices.iter().position(|(known, _)| *known == Uuid::default()));
        if let Some(place) = place.and_then(|place| table.slices.get_mut(place)) {
            *place = (uuid, slice_us);
        }
    });
    each_group(uuid, |group| group.slice_us != slice_us, |group, _| group.set_slice(slice_us))
}
