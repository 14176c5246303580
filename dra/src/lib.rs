//! GPU shares in Kubernetes, placed by the stock scheduler.
//!
//! `vgpu-dra` is a kubelet plugin for dynamic resource allocation (DRA). [`discovery`] reads the machine's GPUs, [`devices`] turns them into
//! devices that a scheduler can choose from, and [`reconcile`] publishes these as the node's ResourceSlices ([`slices`]). The kubelet talks
//! to [`kubelet`]; [`driver`] prepares a claim by turning its allocation ([`claim`]) into share files and a CDI specification ([`cdi`])
//! for the container runtime, recorded in a [`checkpoint`] beforehand. [`status`] serves the plugin's health and metrics. This crate does not enforce limits: `vgpu-runtime` and `vgpu-hook`
//! do.
//!
//! `vgpu-webhook` ([`webhook`]) turns HAMi's extended resources into such claims.

pub mod backoff;
pub mod cdi;
pub mod checkpoint;
pub mod claim;
pub mod cluster;
pub mod connections;
pub mod daemon;
pub mod devices;
pub mod discovery;
pub mod driver;
pub mod health;
pub mod kubelet;
pub mod names;
pub mod options;
pub mod parameters;
pub mod proto;
pub mod publication;
pub mod quantity;
pub mod reconcile;
pub mod service;
pub mod slices;
pub mod socket;
pub mod status;
pub mod storage;
pub mod webhook;
