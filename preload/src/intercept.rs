//! How a call gets here.
//!
//! Linked programs find our exported symbols first. `dlsym` and `dlvsym` ([`symbols`]) and `cuGetProcAddress` ([`proc_address`])
//! give out our functions in place of the driver's.

pub mod elf;
pub mod names;
pub mod proc_address;
pub mod symbols;
pub mod unknown;
