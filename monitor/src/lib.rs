//! The host's view of GPUs that containers share.
//!
//! [`container`] reads what is on record for each container, its limits page and its [`account`]; [`gpus`] asks NVML; [`ownership`] tells
//! whose the processes are. An [`observer`] puts all of that at one moment into a [`snapshot`], which everything else is made from.
//! [`change`] changes a container's limits. [`service`] is `vgpu monitor`: it lets [`enforce`] judge, tells [`metrics`] over [`http`], and
//! keeps [`hami_region`]'s files and those of [`trace`]s.

pub mod account;
mod atomic_file;
pub mod change;
pub mod container;
mod container_files;
pub mod enforce;
pub mod gpus;
pub mod hami_region;
pub mod http;
pub mod inventory;
pub mod latest;
pub mod metrics;
pub mod mig;
pub mod observer;
pub mod ownership;
pub mod processes;
pub mod service;
pub mod snapshot;
pub mod trace;

#[cfg(test)]
mod test_host;
