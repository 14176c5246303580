//! The names of all intercepted functions, and which library each belongs to.

pub mod library;
pub mod names;
