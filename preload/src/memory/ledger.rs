//! The account: claims, charges, overhead, and the distance to the limit. Asks neither the driver nor NVML.

pub mod account;
pub mod changes;
pub mod optimistic;
pub mod spilled;
pub mod watermark;
