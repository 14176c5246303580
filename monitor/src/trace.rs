//! Traces of what a container's processes do on the GPU.
//!
//! The processes write into rings in their region's file ([`vgpu_region::trace`]). [`rings`] copies from these, `clock` maps the GPU's
//! times to the host's clock, [`chrome`] writes the Trace Event Format that Perfetto and Chrome open, [`alnair`] writes Alnair's two logs.
//! [`log_dir`] has the files of a container that requests them at its creation.

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
