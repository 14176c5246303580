//! Names of the intercepted functions, and the library of each.

pub mod library;
pub mod names;
