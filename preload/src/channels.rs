//! This process's channel groups: their time slice, and whether the GPU's scheduler runs them.
//!
//! A context computes in one channel group. `libcuda` makes it by calls of `ioctl`, which [`observe`] sees; [`groups`] keeps the groups and
//! controls them with the same calls ([`control`]). All of this is optional: where the driver does not allow it, or makes its groups in another way (MPS,
//! a vGPU guest), there are no groups here, and nothing is switched.

mod control;
pub mod groups;
pub mod observe;
