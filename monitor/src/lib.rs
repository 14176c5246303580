//! The host's view of GPUs that containers share.
//!
//! * [`container`] reads a container's record, limits page and [`account`]; [`gpus`] queries NVML; [`ownership`] maps processes to
//!   containers.
//! * An [`observer`] combines these into a [`snapshot`], from which everything else derives.
//! * [`parts`] are the processes of `vgpu monitor`: one detects [`violations`] and runs [`enforcement`], one serves [`metrics`] over
//!   [`http`] with the [`web`] page, and some keep [`hami_region`] files and [`trace`] logs.
//! * [`change`] changes a container's limits. [`capabilities`] are what the processes may do as root.

pub mod account;
mod atomic_file;
pub mod capabilities;
pub mod change;
pub mod container;
mod container_files;
mod damage;
pub mod enforcement;
pub mod engine_names;
mod file_cache;
pub mod gpu_time;
pub mod gpus;
pub mod hami_region;
pub mod http;
pub mod inventory;
pub mod metrics;
pub mod mig;
pub mod nvml;
pub mod observer;
mod open_files;
pub mod ownership;
pub mod parts;
pub mod process_table;
pub mod processes;
pub mod rights;
pub mod seats;
pub mod selection;
pub mod settings;
mod shared_file;
pub mod snapshot;
pub mod text;
pub mod trace;
pub mod violations;
pub mod web;

#[cfg(test)]
mod test_host;
