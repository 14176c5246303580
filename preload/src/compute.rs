//! The compute limit.
