//! The atomics of the shared files. The test of all interleavings replaces this module with loom's.

pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
