//! The account: reservations, charges, overhead, and how far the limit is. Asks neither the driver nor NVML.

pub mod account;
pub mod changes;
pub mod optimistic;
pub mod spilled;
pub mod watermark;
