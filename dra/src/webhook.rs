//! `vgpu-webhook`: HAMi's users write `nvidia.com/gpu: 1`, `nvidia.com/gpumem: 3000`, `nvidia.com/gpucores: 30`; pods get claims instead.
//!
//! [`resources`] reads what a container wants, [`template`] is that as a ResourceClaimTemplate, [`pod`] puts both together, and [`server`] talks
//! to the API server. Templates are named by their contents, so the webhook can make them on the way: asking twice, or for a pod that is
//! then refused, makes nothing more. (DRA's own extended resources stand for whole devices only, and have no place for memory.)

pub mod pod;
pub mod resources;
pub mod server;
pub mod template;
pub mod tls;
