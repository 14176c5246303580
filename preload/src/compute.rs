//! The compute limiter on a real driver: its engine, and this process's streams.

pub mod collectives;
pub mod cuda_engine;
pub mod pacing;
pub mod streams;
pub mod switcher;
