//! Kernels that wait for other GPUs: those of NCCL, of NVSHMEM, and all-reduces of their own that inference engines have.
//!
//! How long such a kernel waits is the others' doing. Were it charged, two GPUs that work together would pay for each other's pauses: each
//! held back makes the other's kernel longer, and so the other's next pause, without end (limits of 25 and 60%: each pause twice as long as
//! the one before, and NCCL's hundredth sum never came). So no more is charged than such a kernel is known to take, which is about the least
//! that was seen: see [`super::cost::Costs::learn_least`].

use core::ffi::CStr;

use crate::trace::names;
use vgpu_cuda_abi::cuda::Handle;

/// What is part of their names: NCCL's and NVSHMEM's, of PyTorch's symmetric memory and FlashInfer, TensorRT-LLM's, vLLM's.
const PARTS: [&[u8]; 6] = [b"nccl", b"nvshmem", b"all_reduce", b"allreduce", b"AllReduce", b"cross_device_reduce"];

/// Whether a kernel waits for other GPUs, by its name. Drivers before 12.3 tell no names.
#[cold]
pub fn is_one(function: Handle) -> bool {
    names::of_kernel(function).is_some_and(is_named_so)
}

fn is_named_so(name: &CStr) -> bool {
    // Each kernel of a graph is looked at whenever that is updated: few places of a name begin like one of the parts.
    let begins = |rest: &&[u8]| matches!(rest.first(), Some(b'n' | b'a' | b'A' | b'c'));
    let name = name.to_bytes();
    (0..name.len()).filter_map(|at| name.get(at..)).filter(begins).any(|rest| PARTS.iter().any(|part| rest.starts_with(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_by_name() {
        for part in PARTS {
            let name = std::ffi::CString::new([b"_Z5", part, b"_x"].concat()).unwrap();
            assert!(is_named_so(&name), "{name:?}");
        }
        for name in [
            c"_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            c"_ZN4vllm26cross_device_reduce_2stageI13__nv_bfloat16Li2EEEvPNS_8RankDataE",
            c"_ZN5flash33trtllm_allreduce_fusion_kernelE",
        ] {
            assert!(is_named_so(name), "{name:?}");
        }
        for name in [c"_ZN2at6native13reduce_kernelILi512ELi1EEEv", c"ampere_bf16_s16816gemm_bf16_128x128", c"nc", c""] {
            assert!(!is_named_so(name), "{name:?}");
        }
    }
}
