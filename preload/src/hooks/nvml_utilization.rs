//! How busy the GPU is: as far as the container's own processes make it so.

use crate::hooks::nvml_memory::view;
use crate::hooks::nvml_processes::Own;
use crate::loader::driver;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_cuda_abi::nvml::{NOT_FOUND, OPERATING_SYSTEM, SUCCESS, UtilizationRates, UtilizationSample};

/// NVML samples processes over about a second.
const WINDOW: u64 = 1_000_000;

/// `nvmlDeviceGetUtilizationRates`: what NVML says that the container's processes use of the whole GPU, never more than the GPU is busy.
pub unsafe fn rates(
    real: unsafe extern "C" fn(Handle, *mut UtilizationRates) -> Status,
    device: Handle,
    rates: *mut UtilizationRates,
) -> Status {
    // SAFETY: the program's own arguments; NVML has accepted the pointer when it succeeds.
    unsafe {
        let status = real(device, rates);
        if status != SUCCESS {
            return status;
        }
        let Some(view) = view() else { return OPERATING_SYSTEM };
        let mut samples = [UtilizationSample::default(); 256];
        let mut count = samples.len() as u32;
        let since = clock::realtime() / 1000 - WINDOW;
        let samples = match driver::nvml_process_utilization(device, samples.as_mut_ptr(), &raw mut count, since) {
            SUCCESS => samples.get(..count as usize).unwrap_or_default(),
            NOT_FOUND => &[],
            // A GPU that does not tell it by process: MIG instances, which are the container's own.
            _ => return SUCCESS,
        };
        let own = Own::read(view);
        *rates = of_own(samples, |pid| own.has(pid), *rates);
    }
    SUCCESS
}

fn of_own(samples: &[UtilizationSample], is_own: impl Fn(u32) -> bool, whole: UtilizationRates) -> UtilizationRates {
    let own = samples.iter().filter(|sample| is_own(sample.pid));
    let (gpu, memory) =
        own.fold((0u32, 0u32), |(gpu, memory), sample| (gpu.saturating_add(sample.sm), memory.saturating_add(sample.memory)));
    UtilizationRates { gpu: gpu.min(whole.gpu), memory: memory.min(whole.memory) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cuda_abi::nvml::UtilizationRates;
    use vgpu_cuda_abi::nvml::UtilizationSample;

    #[test]
    fn own_use_never_exceeds_the_whole() {
        let sample = |pid, sm, memory| UtilizationSample { pid, sm, memory, ..UtilizationSample::default() };
        let whole = UtilizationRates { gpu: 90, memory: 20 };
        let cases: [(&str, &[UtilizationSample], (u32, u32)); 4] = [
            ("nobody", &[], (0, 0)),
            ("others only", &[sample(9, 80, 20)], (0, 0)),
            ("own among others", &[sample(1, 30, 5), sample(9, 50, 9), sample(2, 10, 1)], (40, 6)),
            ("samples that overlap", &[sample(1, 80, 15), sample(2, 80, 15)], (90, 20)),
        ];
        for (what, samples, (gpu, memory)) in cases {
            assert_eq!(of_own(samples, |pid| pid < 5, whole), UtilizationRates { gpu, memory }, "{what}");
        }
    }
}
