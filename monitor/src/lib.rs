//! The host's view of GPUs that containers share.
//!
//! [`container`] reads what is on record for each container, its limits page and its [`account`]; [`gpus`] asks NVML; [`belongs`] tells
//! whose the processes are. An [`observer`] puts all of that at one moment into a [`snapshot`], which everything else is made from.
//! [`change`] changes a container's limits. [`service`] is `vgpu monitor`: it lets [`enforce`] judge, tells [`metrics`] over [`http`], and
//! keeps [`hami`]'s files and those of [`trace`]s.

pub mod account;
pub mod belongs;
pub mod change;
pub mod container;
pub mod enforce;
pub mod gpus;
pub mod hami;
pub mod http;
mod inside;
pub mod inventory;
pub mod metrics;
pub mod mig;
pub mod observer;
pub mod processes;
pub mod service;
pub mod snapshot;
pub mod trace;

#[cfg(test)]
mod stand_in;
