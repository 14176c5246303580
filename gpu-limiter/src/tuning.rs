//! Constants that several parts of the limiter share.

/// A pause in a stream that is shorter than this counts as used: nobody else can have the GPU for less, since passing it from one
/// process to another and back takes twice 100 µs, and twice as much again to wake them. So a program that keeps the GPU waiting for a
/// moment again and again gets its share of what it would get done alone.
pub const GAP: u64 = 500_000;
