//! Traces: records of what the program does on the GPU, in this process's ring in the region ([`vgpu_region::trace`]).

pub mod call;
pub mod control;
pub mod gpu_time;
pub mod names;
pub mod recorders;
pub mod sink;
