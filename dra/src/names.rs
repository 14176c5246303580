//! Names that the driver publishes in the cluster.

/// Name of the driver, and domain of its devices' attributes and capacities.
pub const DRIVER: &str = "gpu.vgpu";
/// DeviceClass that claims request.
pub const DEVICE_CLASS: &str = "gpu.vgpu";
/// Capacity of device memory, in bytes.
pub const MEMORY: &str = "memory";
/// Capacity of compute time, in percent of one GPU.
pub const CORES: &str = "cores";
/// Key of the taint on a GPU that is gone while claims use it.
pub const GONE_TAINT: &str = "gpu.vgpu/gone";
