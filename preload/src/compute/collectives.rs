//! Recognizes collective kernels, which wait for other GPUs: those of NCCL, of NVSHMEM, and the all-reduce kernels of inference engines.
//!
//! How long such a kernel waits depends on the other GPUs. If the wait were charged, two GPUs that work together would pay for each other's
//! pauses: holding back one makes the other's kernel longer, and so the other's next pause, without end (limits of 25 and 60%: each pause
//! twice as long as the one before, and NCCL's hundredth sum never came). So such a kernel is charged at most its known cost, which is about
//! the minimum that was measured: see [`vgpu_gpu_limiter::cost_model::CostModel::learn_collective`].

use core::ffi::CStr;

use crate::trace::names;
use vgpu_cuda_abi::cuda::Handle;

/// Parts of their names: NCCL's and NVSHMEM's, of PyTorch's symmetric memory and FlashInfer, TensorRT-LLM's, vLLM's.
const NAME_PARTS: [&[u8]; 6] = [b"nccl", b"nvshmem", b"all_reduce", b"allreduce", b"AllReduce", b"cross_device_reduce"];

/// Returns true if a kernel is collective, by its name. Drivers before 12.3 do not tell names.
#[cold]
pub fn is_one(function: Handle) -> bool {
    names::of_kernel(function).is_some_and(has_collective_name)
}

/// Returns true if a name has one of [`NAME_PARTS`] in it.
fn has_collective_name(name: &CStr) -> bool {
    // Every kernel of a graph is checked whenever the graph is updated. Few places of a name begin like one of the parts.
    let may_begin = |rest: &&[u8]| matches!(rest.first(), Some(b'n' | b'a' | b'A' | b'c'));
    let name = name.to_bytes();
    (0..name.len()).filter_map(|at| name.get(at..)).filter(may_begin).any(|rest| NAME_PARTS.iter().any(|part| rest.starts_with(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collective_kernels_are_recognized_by_name() {
        for part in NAME_PARTS {
            let name = std::ffi::CString::new([b"_Z5", part, b"_x"].concat()).unwrap();
            assert!(has_collective_name(&name), "{name:?}");
        }
        for name in [
            c"_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
            c"_ZN4vllm26cross_device_reduce_2stageI13__nv_bfloat16Li2EEEvPNS_8RankDataE",
            c"_ZN5flash33trtllm_allreduce_fusion_kernelE",
        ] {
            assert!(has_collective_name(name), "{name:?}");
        }
        for name in [c"_ZN2at6native13reduce_kernelILi512ELi1EEEv", c"ampere_bf16_s16816gemm_bf16_128x128", c"nc", c""] {
            assert!(!has_collective_name(name), "{name:?}");
        }
    }
}
