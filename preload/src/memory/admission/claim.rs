//! Claims that are refused only after a full recount.

use crate::memory::admission::near_limit::try_claim;
use crate::memory::admission::{refusal, retry};
use crate::memory::ledger::account::Claim;
use crate::memory::ledger::spilled;
use crate::session::Gpu;
use vgpu_cuda_abi::cuda::{OUT_OF_MEMORY, Status};

/// Upper bound, in pages, of what a call takes.
#[derive(Clone, Copy, Debug)]
pub enum Estimate {
    /// Device memory.
    AtMost(u32),
    /// Device memory, for which memory on the host can stand in.
    AtMostHere(u32),
    /// A context. While other contexts of unknown cost are being made, the claim waits for them before it is refused.
    Context(u32),
}

impl Estimate {
    /// Claims the pages before the driver is called.
    ///
    /// # Errors
    /// Returns CUDA's out-of-memory code, and logs it, if the container has no room even after a full recount. Where the host may have room
    /// for it instead, returns [`spilled::MAY_SPILL`], and logs nothing.
    #[inline]
    pub fn claim(self, gpu: &Gpu) -> Result<Claim<'_>, Status> {
        let (Self::AtMost(pages) | Self::AtMostHere(pages) | Self::Context(pages)) = self;
        match try_claim(gpu, pages) {
            Some(claim) => Ok(claim),
            None => self.claim_after_recount(gpu, pages),
        }
    }

    /// Claims after the account was brought in line with NVML and what can be given back was given back.
    #[cold]
    fn claim_after_recount(self, gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
        if let Some(claim) = retry::find(gpu, pages, matches!(self, Self::Context(_))) {
            return Ok(claim);
        }
        if matches!(self, Self::AtMostHere(_)) && spilled::ceiling(gpu) != 0 {
            return Err(spilled::MAY_SPILL);
        }
        refusal::refuse(gpu, pages);
        Err(OUT_OF_MEMORY)
    }
}

/// Claims `pages` of device memory before the driver is called.
///
/// # Errors
/// As [`Estimate::claim`].
#[inline]
pub fn claim(gpu: &Gpu, pages: u32) -> Result<Claim<'_>, Status> {
    Estimate::AtMost(pages).claim(gpu)
}
