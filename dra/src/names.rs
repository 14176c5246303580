//! Names that the cluster sees.

/// The driver's name, which is also the domain of its devices' attributes and capacities.
pub const DRIVER: &str = "gpu.vgpu";
/// The class of devices that claims ask for.
pub const DEVICE_CLASS: &str = "gpu.vgpu";
/// The capacity of device memory.
pub const MEMORY: &str = "memory";
/// The capacity of compute time, in percent.
pub const CORES: &str = "cores";
/// The key of the taint of a GPU that is gone while claims have it.
pub const GONE_TAINT: &str = "gpu.vgpu/gone";
