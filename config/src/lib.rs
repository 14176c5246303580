//! The model of limits: what a container requests ([`Request`]), what the operator allows ([`Policy`]), what is decided ([`Limits`]).
//!
//! [`dialect`] reads the annotations and variables of a container and its pod, one module for each dialect, into one model. [`decide()`]
//! takes the strictest of the requests, applies the operator's defaults and ceilings, and selects devices. This crate depends neither
//! on the container's runtime nor on CUDA.

pub mod decide;
pub mod devices;
pub mod dialect;
mod doubts;
pub mod error;
pub mod inventory;
pub mod limits;
pub mod policy;
pub mod quantity;
pub mod request;
pub mod setting;
pub mod spelling;

pub use decide::decide;
pub use doubts::doubts;
pub use error::{Error, Result};
pub use inventory::Inventory;
pub use limits::Limits;
pub use policy::Policy;
pub use request::Request;
pub use setting::Setting;
