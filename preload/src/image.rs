//! Program images: the device memory that an image takes, read before the driver loads it.

pub mod cubin;
pub mod fatbin;
pub mod globals;
pub mod ptx;
pub mod reader;
pub mod unpack;
