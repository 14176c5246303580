//! The compute budget of one container on one GPU.

use core::sync::atomic::AtomicU64;

/// Shared state of the compute limit.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Budget {
    words: [AtomicU64; 128],
}

const _: () = assert!(core::mem::size_of::<Budget>() == 1024);
