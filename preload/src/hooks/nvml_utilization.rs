//! Utilization of the GPU by the container's own processes.

use crate::hooks::nvml_memory::view;
use crate::hooks::nvml_processes::Own;
use crate::loader::driver;
use crate::os::clock;
use vgpu_cuda_abi::cuda::{Handle, Status};
use vgpu_cuda_abi::nvml::{NOT_FOUND, OPERATING_SYSTEM, SUCCESS, UtilizationRates, UtilizationSample};

/// Period for which NVML is asked for samples of processes, in microseconds: about its own sample period.
const WINDOW_US: u64 = 1_000_000;

/// Replaces the GPU's utilization by the part that NVML attributes to the container's processes, capped at the whole.
pub unsafe fn rates(call: impl FnOnce() -> Status, device: Handle, rates: *mut UtilizationRates) -> Status {
    let status = call();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: NVML has written the rates, and writes as many samples as it counts.
    unsafe {
        let Some(view) = view() else { return OPERATING_SYSTEM };
        let mut samples = [UtilizationSample::default(); 256];
        let mut count = samples.len() as u32;
        let since = clock::realtime() / 1000 - WINDOW_US;
        let samples = match driver::nvml_process_utilization(device, samples.as_mut_ptr(), &raw mut count, since) {
            SUCCESS => samples.get(..count as usize).unwrap_or_default(),
            NOT_FOUND => &[],
            // NVML has no samples by process for a MIG instance, which is the container's own.
            _ => return SUCCESS,
        };
        let own = Own::read(view);
        *rates = of_own(samples, |pid| own.has(pid), *rates);
    }
    SUCCESS
}

/// Sums the samples of the container's own processes, capped at `whole`.
fn of_own(samples: &[UtilizationSample], is_own: impl Fn(u32) -> bool, whole: UtilizationRates) -> UtilizationRates {
    let own = samples.iter().filter(|sample| is_own(sample.pid));
    let (gpu, memory) =
        own.fold((0u32, 0u32), |(gpu, memory), sample| (gpu.saturating_add(sample.sm), memory.saturating_add(sample.memory)));
    UtilizationRates { gpu: gpu.min(whole.gpu), memory: memory.min(whole.memory) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_use_never_exceeds_the_whole() {
        let sample = |pid, sm, memory| UtilizationSample { pid, sm, memory, ..UtilizationSample::default() };
        let whole = UtilizationRates { gpu: 90, memory: 20 };
        let cases: [(&str, &[UtilizationSample], (u32, u32)); 4] = [
            ("no samples", &[], (0, 0)),
            ("other processes only", &[sample(9, 80, 20)], (0, 0)),
            ("own processes among others", &[sample(1, 30, 5), sample(9, 50, 9), sample(2, 10, 1)], (40, 6)),
            ("overlapping samples", &[sample(1, 80, 15), sample(2, 80, 15)], (90, 20)),
        ];
        for (what, samples, (gpu, memory)) in cases {
            assert_eq!(of_own(samples, |pid| pid < 5, whole), UtilizationRates { gpu, memory }, "{what}");
        }
    }
}
