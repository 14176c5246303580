//! The units in which the driver hands out device memory.

/// The driver hands out device memory in pieces of this many bytes (seen on driver 580, H200: larger allocations are rounded up to it,
/// smaller ones share blocks of it).
pub const GRANULE: u64 = 2 << 20;
/// A granule in pages of the account.
pub const GRANULE_PAGES: u32 = (GRANULE / vgpu_region::ledger::PAGE) as u32;
/// Linear allocations up to this size share granules.
pub const SMALL: u64 = GRANULE - 1;
/// Pools grow by multiples of this (seen on driver 580).
pub const POOL_STEP: u64 = 32 << 20;

/// `bytes` rounded up to a multiple of `step`, a power of two, in pages.
pub const fn rounded_pages(bytes: u64, step: u64) -> u32 {
    vgpu_region::ledger::pages(bytes.saturating_add(step - 1) & !(step - 1))
}
