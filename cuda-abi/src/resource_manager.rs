//! The kernel driver's resource manager, as `libcuda` calls it: `ioctl` on `/dev/nvidiactl`, with objects named by 32-bit handles.
//!
//! Only what concerns channel groups is here: which the process has, their time slice, and switching their channels off. From NVIDIA's open
//! kernel modules 580.105.08: `nv_escape.h`, `nvos.h`, `ctrla06c.h`, `ctrl2080fifo.h`, `ctrl2080gpu.h`. None of these controls needs a
//! privilege (`RS_ACCESS`-free, flagged non-privileged there).

use core::ffi::c_void;

/// Handle of an object of the resource manager; unique in its client.
pub type ObjectHandle = u32;
/// `NV_STATUS`; 0 is success.
pub type RmStatus = u32;
/// [`RmStatus`] of a call that succeeded.
pub const RM_OK: RmStatus = 0;

/// Type byte of the requests, as in `_IOWR('F', number, size)`.
pub const IOCTL_TYPE: u8 = b'F';
/// `NV_ESC_RM_FREE`, with [`Free`].
pub const FREE: u8 = 0x29;
/// `NV_ESC_RM_CONTROL`, with [`Control`].
pub const CONTROL: u8 = 0x2a;
/// `NV_ESC_RM_ALLOC`, with [`Allocation`] or [`ShortAllocation`].
pub const ALLOC: u8 = 0x2b;
/// `NV_ESC_IOCTL_XFER_CMD`, with [`Transfer`]: carries another request.
pub const TRANSFER: u8 = 211;

/// Class of a channel group: `KEPLER_CHANNEL_GROUP_A`.
pub const CHANNEL_GROUP: u32 = 0xa06c;
/// Class of a GPU in a device: `NV20_SUBDEVICE_0`.
pub const SUBDEVICE: u32 = 0x2080;
/// Engine of a group that computes: `NV2080_ENGINE_TYPE_GR0`.
pub const COMPUTE_ENGINE: u32 = 1;

/// `NVA06C_CTRL_CMD_SET_TIMESLICE`, with a `u64` of microseconds, on a channel group.
pub const SET_TIMESLICE: u32 = 0xa06c_0103;
/// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`, with [`DisableChannels`], on a subdevice.
pub const DISABLE_CHANNELS: u32 = 0x2080_110b;
/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`, with [`GpuId`], on a subdevice.
pub const GET_GPU_ID: u32 = 0x2080_014a;
/// Most channels in one [`DisableChannels`].
pub const MAX_CHANNELS: usize = 64;

/// Returns true for the engines of groups that copy: `NV2080_ENGINE_TYPE_COPY0` to `COPY9`, and `COPY10` to `COPY19`.
#[must_use]
pub const fn is_copy_engine(engine: u32) -> bool {
    matches!(engine, 0x09..=0x12 | 0x34..=0x3d)
}

/// Returns true for the classes of channels, `*_CHANNEL_GPFIFO_*`, from Kepler's 0xa06f on.
#[must_use]
pub const fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f && class >= 0xa06f
}

/// Parameters of an allocation: `NVOS64_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
pub struct Allocation {
    /// Client that the object belongs to.
    pub client: ObjectHandle,
    /// Parent object.
    pub parent: ObjectHandle,
    /// Handle of the new object.
    pub object: ObjectHandle,
    /// Class of the new object.
    pub class: u32,
    /// Parameters of the class.
    pub parameters: *mut c_void,
    /// Requested rights.
    pub rights: *mut c_void,
    /// Size of the parameters in bytes.
    pub size: u32,
    /// Flags.
    pub flags: u32,
    /// Result.
    pub status: RmStatus,
    /// Unused.
    pub padding: u32,
}

/// Parameters of an allocation without rights: `NVOS21_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
pub struct ShortAllocation {
    /// Client that the object belongs to.
    pub client: ObjectHandle,
    /// Parent object.
    pub parent: ObjectHandle,
    /// Handle of the new object.
    pub object: ObjectHandle,
    /// Class of the new object.
    pub class: u32,
    /// Parameters of the class.
    pub parameters: *mut c_void,
    /// Size of the parameters in bytes.
    pub size: u32,
    /// Result.
    pub status: RmStatus,
}

/// Parameters of a channel group: the beginning of `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
pub struct ChannelGroupParameters {
    /// Objects that the group refers to.
    pub objects: [ObjectHandle; 3],
    /// Engine of the group's channels.
    pub engine: u32,
}

/// Parameters of the end of an object and everything below it: `NVOS00_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
pub struct Free {
    /// Client that the object belongs to.
    pub client: ObjectHandle,
    /// Parent object.
    pub parent: ObjectHandle,
    /// The object.
    pub object: ObjectHandle,
    /// Result.
    pub status: RmStatus,
}

/// Parameters of a control: `NVOS54_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// Client of the object.
    pub client: ObjectHandle,
    /// The object.
    pub object: ObjectHandle,
    /// The command.
    pub command: u32,
    /// Flags.
    pub flags: u32,
    /// Parameters of the command.
    pub parameters: *mut c_void,
    /// Size of the parameters in bytes.
    pub size: u32,
    /// Result.
    pub status: RmStatus,
}

/// A request within a request: `nv_ioctl_xfer_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Transfer {
    /// Number of the request.
    pub number: u32,
    /// Size of its parameters in bytes.
    pub size: u32,
    /// Its parameters.
    pub parameters: *mut c_void,
}

/// Channels to switch off or on: `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub struct DisableChannels {
    /// 1 switches off, 0 on.
    pub disable: u8,
    /// Number of channels.
    pub count: u32,
    /// 1: work on the GPU is not preempted.
    pub only_scheduling: u8,
    /// 1: the channels' positions are reset.
    pub rewind: u8,
    /// Event to be told of the preemption; 0 is none.
    pub event: u64,
    /// Client of each channel.
    pub clients: [ObjectHandle; MAX_CHANNELS],
    /// Each channel.
    pub channels: [ObjectHandle; MAX_CHANNELS],
}

const _: () = assert!(size_of::<Allocation>() == 48 && size_of::<ShortAllocation>() == 32 && size_of::<Free>() == 16);
const _: () = assert!(size_of::<Control>() == 32 && size_of::<Transfer>() == 16 && size_of::<DisableChannels>() == 536);

/// A GPU's UUID: `NV2080_CTRL_GPU_GET_GID_INFO_PARAMS`.
#[repr(C)]
#[derive(Debug)]
pub struct GpuId {
    /// Index of the identifier; 0.
    pub index: u32,
    /// Format; see [`GpuId::BINARY`].
    pub flags: u32,
    /// Length of the answer in bytes.
    pub length: u32,
    /// The answer.
    pub data: [u8; 256],
}

impl GpuId {
    /// Format of 16 bytes: `NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY`.
    pub const BINARY: u32 = 2;
}
