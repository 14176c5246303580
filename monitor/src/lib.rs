//! The host's view of GPUs that containers share.
//!
//! [`container`] reads what is on record for each container, its limits page and its [`account`]; [`gpus`] asks NVML; [`belongs`] tells
//! whose the processes are. All of that together at one moment is a [`snapshot`], which everything else is made from.
//! [`change`] changes a container's limits.

pub mod account;
pub mod belongs;
pub mod change;
pub mod container;
pub mod enforce;
pub mod gpus;
pub mod hami;
pub mod inventory;
pub mod processes;
pub mod snapshot;

#[cfg(test)]
mod stand_in;
