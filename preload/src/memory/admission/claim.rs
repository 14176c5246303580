//! Claims that are refused only after everything was counted anew.

use crate::memory::admission::near_limit::try_claim;
use crate::memory::admission::{refusal, retry};
use crate::memory::ledger::account::Claim;
use crate::memory::ledger::spilled;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, Status};

/// Takes `pages` before the driver is asked.
///
/// # Errors
/// CUDA's out-of-memory code, when the container has no room even after everything was counted anew.
#[inline]
pub fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_after_recount(gpu, pages),
    }
}

/// As [`claim`], for memory that can lie on the host instead.
///
/// # Errors
/// [`spill::ELSEWHERE`] where it may, and nothing is said; else as there.
#[inline]
pub fn claim_here(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    match try_claim(gpu, pages) {
        Some(claim) => Ok(claim),
        None => claim_here_after_recount(gpu, pages),
    }
}

#[cold]
fn claim_here_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    if spilled::ceiling(gpu) == 0 { claim_after_recount(gpu, pages) } else { retry::find(gpu, pages, false).ok_or(spilled::ELSEWHERE) }
}

/// The account says no. Before the program hears it: give back what the dead held, let go of what pools no longer have, wait for a
/// context whose cost is still a guess, and ask NVML for the truth.
#[cold]
fn claim_after_recount(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    retry::find(gpu, pages, false).ok_or_else(|| {
        refusal::refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}

/// As [`claim`], for a context.
///
/// # Errors
/// As there.
pub fn claim_for_context(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    try_claim(gpu, pages).or_else(|| retry::find(gpu, pages, true)).ok_or_else(|| {
        refusal::refuse(gpu, pages);
        OUT_OF_MEMORY
    })
}
