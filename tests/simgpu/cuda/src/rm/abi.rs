//! Requests of the resource manager and their parameters, from NVIDIA's open kernel modules.

use std::ffi::{c_ulong, c_void};

/// Type of all its ioctls.
pub const TYPE: u32 = b'F' as u32;

/// Parameters of an ioctl.
pub trait Escape {
    /// Number of the ioctl.
    const NUMBER: u32;
    /// Sets the result.
    fn set_status(&mut self, status: u32);
}

/// Returns the request of the ioctl with these parameters: `_IOWR('F', NUMBER, T)`.
pub const fn request<T: Escape>() -> c_ulong {
    3 << 30 | (size_of::<T>() as c_ulong) << 16 | (TYPE as c_ulong) << 8 | T::NUMBER as c_ulong
}

/// `NVOS64_PARAMETERS`: makes an object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Alloc {
    pub root: u32,
    pub parent: u32,
    /// Its handle; 0 lets the kernel choose.
    pub new: u32,
    pub class: u32,
    pub params: *mut c_void,
    pub rights: u64,
    pub params_size: u32,
    pub flags: u32,
    pub status: u32,
    pub padding: u32,
}

/// `NVOS54_PARAMETERS`: controls an object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Control {
    pub client: u32,
    pub object: u32,
    pub command: u32,
    pub flags: u32,
    pub params: *mut c_void,
    pub params_size: u32,
    pub status: u32,
}

/// `NVOS00_PARAMETERS`: frees an object and all below it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Free {
    pub root: u32,
    pub parent: u32,
    pub old: u32,
    pub status: u32,
}

/// Implements [`Escape`] for the parameters of the ioctls.
macro_rules! escapes {
    ($($type:ty = $number:literal)*) => { $(
        impl Escape for $type {
            const NUMBER: u32 = $number;
            fn set_status(&mut self, status: u32) {
                self.status = status;
            }
        }
    )* };
}
escapes! { Free = 0x29  Control = 0x2a  Alloc = 0x2b }

/// `NV01_ROOT_CLIENT`
pub const CLASS_ROOT: u32 = 0x41;
/// `NV01_DEVICE_0`; the first word of its parameters is the index of the GPU.
pub const CLASS_DEVICE: u32 = 0x80;
/// `NV20_SUBDEVICE_0`
pub const CLASS_SUBDEVICE: u32 = 0x2080;
/// `KEPLER_CHANNEL_GROUP_A`; its parameters are a [`GroupParams`].
pub const CLASS_GROUP: u32 = 0xa06c;
/// `HOPPER_CHANNEL_GPFIFO_A`
pub const CLASS_CHANNEL: u32 = 0xc86f;

/// `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GroupParams {
    pub error: u32,
    pub ecc_error: u32,
    pub address_space: u32,
    pub engine: u32,
    pub flags: u32,
}

/// `NV2080_ENGINE_TYPE_GRAPHICS`, which also computes.
pub const ENGINE_COMPUTE: u32 = 1;
/// `NV2080_ENGINE_TYPE_COPY2` and the two after it.
pub const ENGINES_COPY: [u32; 3] = [11, 12, 13];

/// `NVA06C_CTRL_CMD_SET_TIMESLICE`; a `u64`, µs.
pub const SET_TIMESLICE: u32 = 0xa06c_0103;
/// `NVA06C_CTRL_CMD_GET_TIMESLICE`; a `u64`, µs.
pub const GET_TIMESLICE: u32 = 0xa06c_0104;
/// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`; a [`DisableChannels`].
pub const DISABLE_CHANNELS: u32 = 0x2080_110b;
/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`; a [`GidInfo`].
pub const GET_GID_INFO: u32 = 0x2080_014a;

/// Time slice of a compute group that libcuda sets, µs.
pub const COMPUTE_SLICE_US: u64 = 2048;
/// Time slice of a copy group, µs.
pub const COPY_SLICE_US: u64 = 1024;
/// Longest time slice that is accepted, µs.
pub const LONGEST_SLICE_US: u64 = 100_000_000;

/// `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DisableChannels {
    pub disable: u8,
    pub count: u32,
    pub only_scheduling: u8,
    pub rewind: u8,
    pub event: u64,
    pub clients: [u32; 64],
    pub channels: [u32; 64],
}

/// `NV2080_CTRL_GPU_GET_GID_INFO_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GidInfo {
    pub index: u32,
    pub flags: u32,
    pub length: u32,
    pub data: [u8; 256],
}

/// Format of [`GidInfo`]: 16 bytes instead of text.
pub const GID_BINARY: u32 = 2;

const _: () = assert!(size_of::<Alloc>() == 48 && size_of::<Control>() == 32 && size_of::<Free>() == 16);
const _: () = assert!(size_of::<DisableChannels>() == 536 && size_of::<GidInfo>() == 268);

/// Results of the resource manager.
pub mod status {
    /// `NV_OK`
    pub const OK: u32 = 0;
    /// `NV_ERR_INSUFFICIENT_PERMISSIONS`
    pub const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
    /// `NV_ERR_INVALID_ARGUMENT`
    pub const INVALID_ARGUMENT: u32 = 0x1f;
    /// `NV_ERR_INVALID_CLASS`
    pub const INVALID_CLASS: u32 = 0x22;
    /// `NV_ERR_INVALID_CLIENT`
    pub const INVALID_CLIENT: u32 = 0x23;
    /// `NV_ERR_INVALID_OBJECT_PARENT`
    pub const INVALID_PARENT: u32 = 0x36;
    /// `NV_ERR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: u32 = 0x56;
    /// `NV_ERR_OBJECT_NOT_FOUND`
    pub const NOT_FOUND: u32 = 0x57;
}
