//! Traces of what a container's processes do on the GPU.
//!
//! The processes write into rings in their region's file ([`vgpu_region::trace`]); [`rings`] copies out of them, `clock` puts the GPU's
//! times on the host's clock, [`chrome`] writes the Trace Event Format that Perfetto and Chrome open, [`alnair`] Alnair's two logs.
//! [`log_dir`] keeps the files of the containers that asked for them when they were made.

pub mod alnair;
pub mod chrome;
mod clock;
mod event;
pub mod log_dir;
pub mod rings;
mod session;

pub use event::Event;
pub use session::TraceSession;

#[cfg(test)]
mod tests;
