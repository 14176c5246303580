//! What a container asks for ([`Request`]), what the operator says ([`Policy`]), and what is decided ([`Limits`]).
//!
//! Everything a container or its pod says is read through [`dialect`], one module for each way of writing it, into one model.
//! [`decide()`] then takes the strictest of what was said, applies the operator's defaults and ceilings, and chooses devices.
//! Nothing here knows what a container is made of, or CUDA.

pub mod decide;
pub mod devices;
pub mod dialect;
pub mod error;
pub mod inventory;
pub mod limits;
pub mod policy;
pub mod quantity;
pub mod request;
pub mod setting;

pub use decide::decide;
pub use error::{Error, Result};
pub use inventory::Inventory;
pub use limits::Limits;
pub use policy::Policy;
pub use request::Request;
pub use setting::Setting;
