//! `vgpu-webhook`: turns the resources of HAMi's users (`nvidia.com/gpu: 1`, `nvidia.com/gpumem: 3000`, `nvidia.com/gpucores: 30`) into
//! claims.
//!
//! [`resources`] reads what a container requests, [`template`] expresses it as a ResourceClaimTemplate, [`pod`] rewrites the pod,
//! [`review`] answers the API server, and [`server`] serves it, with a certificate that [`certificate`] may
//! manage. A template's name is a hash of its contents, so the webhook can create it during admission: repeated
//! reviews, and pods that are refused later, create no further templates. DRA's own extended resources are not used, as they stand for
//! whole devices only and cannot express an amount of memory.

// A panic aborts the process, and what these modules read is written by others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unwrap_used
    )
)]

pub mod certificate;
pub mod options;
pub mod pod;
pub mod resources;
pub mod review;
pub mod server;
pub mod template;
pub mod tls;
