//! The atomics of the shared files, in one place: the test of all interleavings puts others here.

pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
