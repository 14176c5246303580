//! The units in which the driver hands out device memory.

/// Size in bytes of the pieces in which the driver hands out device memory (seen on driver 580, H200: larger allocations are rounded up to
/// it, smaller ones share granules).
pub const GRANULE: u64 = 2 << 20;
/// Size of a granule in pages of the account.
pub const GRANULE_PAGES: u32 = (GRANULE / vgpu_region::ledger::PAGE) as u32;
/// Largest size in bytes of a linear allocation that shares a granule.
pub const SMALL: u64 = GRANULE - 1;
/// Step in bytes by which pools grow (seen on driver 580).
pub const POOL_STEP: u64 = 32 << 20;

/// Returns `bytes` rounded up to a multiple of `step`, a power of two, in pages.
pub const fn rounded_pages(bytes: u64, step: u64) -> u32 {
    vgpu_region::ledger::pages(bytes.saturating_add(step - 1) & !(step - 1))
}
