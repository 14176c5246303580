//! Claims that are refused only after a full recount.

use crate::memory::admission::near_limit::try_claim;
use crate::memory::admission::{refusal, retry};
use crate::memory::ledger::account::Claim;
use crate::memory::ledger::spilled;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, Status};

/// Claims `pages` before the driver is called.
///
/// # Errors
/// Returns CUDA's out-of-memory code if the container has no room even after a full recount. The refusal is logged.
#[inline]
pub fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).map_or_else(|| claim_after_recount(gpu, pages, false, false), Ok)
}

/// As [`claim`], for memory that the host can stand in for.
///
/// # Errors
/// Returns [`spilled::ELSEWHERE`], and logs nothing, where memory may lie on the host; else as [`claim`].
#[inline]
pub fn claim_here(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).map_or_else(|| claim_after_recount(gpu, pages, false, true), Ok)
}

/// As [`claim`], for a context.
///
/// # Errors
/// As [`claim`].
pub fn claim_for_context(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).map_or_else(|| claim_after_recount(gpu, pages, true, false), Ok)
}

#[cold]
fn claim_after_recount(gpu: &Gpu, pages: u32, is_context: bool, can_spill: bool) -> Result<Claim<'_>, Status> {
    if let Some(claim) = retry::find(gpu, pages, is_context) {
        return Ok(claim);
    }
    if can_spill && spilled::ceiling(gpu) != 0 {
        return Err(spilled::ELSEWHERE);
    }
    refusal::refuse(gpu, pages);
    Err(OUT_OF_MEMORY)
}
