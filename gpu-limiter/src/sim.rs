//! The limiter on a simulated GPU with a deterministic clock.

mod collectives;
pub mod gpu;
mod host_bound;
mod limits;
mod matrix;
pub mod process;
mod processes;
mod properties;
mod recorded;
mod side_by_side;
mod unmeasured;
