//! Resource manager: the part of the driver that runs in the kernel, as libcuda and a library that interposes its `ioctl` see it.
//!
//! `client` is libcuda's side, which makes the ioctls of the real one; `kernel` answers them. Both are in this library, so its constructor
//! sends its own calls of `ioctl` to the simulated kernel.

mod abi;
pub mod client;
mod got;
pub mod kernel;
mod objects;
#[cfg(test)]
mod tests;
