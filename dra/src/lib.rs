//! Shares of GPUs in Kubernetes, placed by the stock scheduler.
//!
//! `vgpu-dra` is a kubelet plugin for dynamic resource allocation. [`discovery`] looks at what the machine has, [`devices`] makes of it what a
//! scheduler can choose from, and [`slices`] keeps the node's ResourceSlices that way. The kubelet finds us by [`kubelet`]; when it asks
//! ([`driver`]), a [`claim`]'s allocation becomes shares on the host and a [`cdi`] specification that the container runtime applies, all
//! noted in a [`checkpoint`] first. What is then enforced, and by whom, is not known here: that is `vgpu-runtime`'s and `vgpu-hook`'s.
//!
//! `vgpu-webhook` ([`webhook`]) turns the resources that HAMi's users write into such claims.

pub mod cdi;
pub mod checkpoint;
pub mod claim;
pub mod cluster;
pub mod daemon;
pub mod devices;
pub mod discovery;
pub mod driver;
pub mod health;
pub mod kubelet;
pub mod names;
pub mod options;
pub mod proto;
pub mod quantity;
pub mod reconcile;
pub mod service;
pub mod slices;
pub mod socket;
pub mod storage;
pub mod webhook;
