//! Clock compensation: charges work by what it would take at the clock of a program that has the GPU for itself.
//!
//! A GPU that reaches its power limit lowers its clock. A program that is held back lets the GPU rest, and runs at a higher clock. A matmul
//! that has an H200 for itself runs at 1.6 GHz and 700 W. With half of the time it ran at 1.9 GHz, and got 0.6 of the work done that it does
//! alone. So that half is half, each nanosecond of such work is charged as the nanoseconds that it would take at the lower clock.
//!
//! The factor is updated once a second, only while launches are held back anyway.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::budget::Budget;

use crate::engine::{Engine, Power};
use crate::tuning::{POWER_ROOT, REST_PER_MILLE};
use crate::turns::Turns;

/// Period of the updates, in nanoseconds: NVML's power is a mean over one second.
const PERIOD_NS: u64 = 1_000_000_000;
/// Longest time between two updates that can be compared, in nanoseconds. After a longer one the power draw is not that of the time used.
const MAX_PERIOD_NS: u64 = PERIOD_NS / 4 * 5;
/// A program that uses less than one part in this many of the time is not compensated: its power cannot be distinguished from that of the GPU at rest.
const MIN_USE_DIVISOR: u64 = 6;
/// NVML's utilization may exceed the time used by one part in this many (matmuls on an H200: a tenth). Any excess is use by others.
const UTILIZATION_ERROR_DIVISOR: u64 = 4;
/// Lowest default power limit of a GPU that is compensated, in milliwatts. Smaller GPUs draw a larger part at rest; none was measured.
const MIN_LIMIT_MW: u32 = 300_000;
/// Fixed-point factor of 1.
const ONE: u32 = 1024;
/// Highest credible ratio of the power that work draws to the power available, in parts of [`ONE`]. The highest measured was 1.5.
const MAX_RATIO: u64 = 2 * ONE as u64;

/// Compensation factor of one GPU; 1 by default.
#[derive(Debug, Default)]
pub struct ClockCompensation {
    /// Factor in parts of [`ONE`]; 0 before the first update.
    factor: AtomicU32,
    next_update_at: AtomicU64,
    last_update_at: AtomicU64,
    /// GPU time charged to the container at the last update, in nanoseconds.
    used_ns: AtomicU64,
}

impl ClockCompensation {
    /// Converts GPU time to the time that is charged for it. Both in nanoseconds.
    pub fn charged_ns(&self, gpu_ns: i64) -> i64 {
        (i128::from(gpu_ns) * i128::from(self.factor.load(Relaxed).max(ONE)) / i128::from(ONE)) as i64
    }

    /// Updates the factor if the period is over. Called while a launch is held back.
    pub fn update(&self, engine: &impl Engine, budget: &Budget, turns: &Turns, now: u64) {
        let next = self.next_update_at.load(Relaxed);
        if now < next || self.next_update_at.compare_exchange(next, now + PERIOD_NS, AcqRel, Relaxed).is_err() {
            return;
        }
        let used_ns = budget.used.load(Relaxed);
        let (last, used_before_ns) = (self.last_update_at.swap(now, Relaxed), self.used_ns.swap(used_ns, Relaxed));
        let passed_ns = now.saturating_sub(last);
        let known = self.factor.load(Relaxed);
        let factor = match known {
            // While other containers use the GPU too, this container's rests do not raise the clock.
            _ if turns.are_taken() => ONE,
            // The old factor decays, as no new one can be measured.
            1.. if passed_ns > MAX_PERIOD_NS => known.midpoint(ONE),
            0 if passed_ns > MAX_PERIOD_NS => return,
            0 => measure(engine, turns, used_ns.saturating_sub(used_before_ns), passed_ns),
            _ => known.midpoint(measure(engine, turns, used_ns.saturating_sub(used_before_ns), passed_ns)),
        };
        self.factor.store(factor, Relaxed);
    }
}

/// Returns the factor for a program that used `used_ns` of the last `passed_ns` nanoseconds.
fn measure(engine: &impl Engine, turns: &Turns, used_ns: u64, passed_ns: u64) -> u32 {
    if used_ns < passed_ns / MIN_USE_DIVISOR {
        return ONE;
    }
    let Some(power) = engine.power(turns.uuid).filter(|power| power.default_limit_mw >= MIN_LIMIT_MW) else { return ONE };
    let alone = slowdown(power, used_ns, passed_ns);
    if alone == ONE {
        return ONE;
    }
    // Others may use the GPU without turns.
    let Some(percent) = engine.busy_percent(turns.uuid) else { return ONE };
    let busy_ns = passed_ns / 100 * u64::from(percent);
    if busy_ns > used_ns.saturating_add(used_ns / UTILIZATION_ERROR_DIVISOR) { slowdown(power, busy_ns, passed_ns) } else { alone }
}

/// Returns how much longer work takes with the GPU for itself than with `used_ns` of `passed_ns` nanoseconds at this power draw, in parts of
/// [`ONE`].
fn slowdown(power: Power, used_ns: u64, passed_ns: u64) -> u32 {
    let rest_mw = u64::from(power.default_limit_mw) * REST_PER_MILLE / 1000;
    let available_mw = u64::from(power.limit_mw).saturating_sub(rest_mw);
    let drawn_mw = u64::from(power.drawn_mw).saturating_sub(rest_mw).saturating_mul(passed_ns) / used_ns.max(1);
    if available_mw == 0 || drawn_mw <= available_mw {
        return ONE;
    }
    let excess = (drawn_mw.saturating_mul(u64::from(ONE)) / available_mw).min(MAX_RATIO) - u64::from(ONE);
    let (whole, over, under) = POWER_ROOT;
    (u64::from(ONE) * (whole * u64::from(ONE) + over * excess) / (whole * u64::from(ONE) + under * excess)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::gpu;
    use crate::sim::gpu::Gpu;
    use crate::sim::process::{Process, S, US, budget, give_turn};
    use vgpu_region::budget::Rate;

    /// Returns the share of the GPU's time that a loop gets, in percent. Its kernels draw `draws` watts; other programs keep the GPU busy for
    /// `others` percent.
    fn share(percent: u32, draws: u32, others: u32) -> f64 {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        gpu.kernel_watts.set(draws);
        gpu.others_percent.set(others);
        let (stream, start) = (process.stream(0), gpu.now());
        while gpu.now() < start + 6 * S {
            process.launch(&gpu, stream, 1, 200 * US);
        }
        let (used, charged) = (gpu.used(start, start + 6 * S), process.meter.account.budget.used.load(Relaxed));
        assert!(used.abs_diff(charged) < used / 100 + 5_000 * US, "the time shown is the real one: used {used}, charged {charged}");
        gpu.used(start + 3 * S, start + 6 * S) as f64 / (3 * S) as f64 * 100.0
    }

    /// A matmul draws 868 W beyond rest at full clock. Alone it is held to 577 W, and takes 1.2 times as long.
    #[test]
    fn work_that_would_be_slower_alone_is_charged_more() {
        let check = |percent: u32, draws, others, factor: f64, why| {
            let (got, expected) = (share(percent, draws, others), f64::from(percent) / factor);
            assert!((got - expected).abs() < 1.0, "{percent}%, {why}: {got:.2} of the time, expected {expected:.2}");
        };
        for percent in [25, 50] {
            check(percent, 868, 0, 1.2, "alone");
            check(percent, 868, percent / 8, 1.2, "NVML reports more than was used");
            check(percent, 868, 100 - percent, 1.0, "others keep the clock down");
            check(percent, 560, 0, 1.0, "it draws little");
            check(percent, 0, 0, 1.0, "the power is unknown");
        }
        check(10, 868, 0, 1.0, "used too little");
    }

    /// Returns what 1000 ns are charged as after `length_ns` nanoseconds, during half of which the GPU worked.
    fn charged_after(gpu: &Gpu, process: &Process, length_ns: u64) -> i64 {
        let account = process.meter.account;
        let end = gpu.now() + length_ns;
        gpu.launch(gpu::stream(1), length_ns / 2);
        account.budget.charge(length_ns as i64 / 2, Rate::new(50).unwrap());
        gpu.pass(end - gpu.now());
        account.compensation.update(gpu, account.budget, &account.turns, gpu.now());
        account.compensation.charged_ns(1000)
    }

    #[test]
    fn an_old_factor_decays() {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
        gpu.kernel_watts.set(868);
        let charged = [S, S, S, 2 * S, 2 * S, S].map(|length_ns| charged_after(&gpu, &process, length_ns));
        assert!(charged[0] == 1000 && charged[1] > 1180 && charged[2] > 1180, "{charged:?}");
        assert!(charged[3] < 1110 && charged[4] < 1060 && charged[5] > 1110, "{charged:?}");
        give_turn(&process);
        process.meter.account.turns.poll(gpu.now() + 1, 0);
        assert_eq!(charged_after(&gpu, &process, S), 1000, "other containers use the GPU too");
    }

    #[test]
    fn small_gpus_are_not_compensated() {
        for (limit, least, most) in [(150, 1000, 1000), (350, 1150, 1250)] {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
            gpu.limit_watts.set(limit);
            gpu.kernel_watts.set(limit * 868 / 700);
            let charged = [S, S].map(|length_ns| charged_after(&gpu, &process, length_ns));
            assert!((least..=most).contains(&charged[1]), "{limit} W: {charged:?}");
        }
    }

    /// Measurements: GPU, percent of the time, watts, and the speed relative to the same work with the GPU for itself.
    #[test]
    fn slowdowns_match_the_measured_ones() {
        for (gpu, percent, watts, measured) in [
            ("H200, matmul 4096", 10, 214, 1.218),
            ("H200, matmul 4096", 25, 341, 1.211),
            ("H200, matmul 4096", 50, 553, 1.198),
            ("H200, matmul 4096", 75, 663, 1.107),
            ("H200, matmul 4096", 90, 677, 1.028),
            ("H200, matmul 8192", 25, 341, 1.212),
            ("H200, matmul 8192", 50, 536, 1.171),
            ("H200, matmul 8192", 75, 689, 1.120),
            ("H200, copies", 25, 242, 1.030),
            ("H200, copies", 75, 465, 1.008),
            ("H200, sines", 25, 232, 1.037),
            ("H100, matmul 4096", 10, 212, 1.179),
            ("H100, matmul 4096", 25, 341, 1.185),
            ("H100, matmul 4096", 50, 545, 1.204),
            ("H100, matmul 4096", 75, 657, 1.104),
            ("H100, matmul 4096", 90, 674, 1.039),
            ("H100, fp32 matmul", 25, 280, 1.043),
            ("H100, fp32 matmul", 50, 422, 1.029),
            ("H100, spinning", 25, 133, 1.02),
        ] {
            let power = Power { drawn_mw: watts * 1000, limit_mw: 700_000, default_limit_mw: 700_000 };
            let factor = f64::from(slowdown(power, percent, 100)) / f64::from(ONE);
            let share = f64::from(u32::try_from(percent).unwrap()) * measured / factor;
            println!("{gpu} at {percent}%: {factor:.3}, measured {measured}: {share:.1}");
            assert!((share - percent as f64).abs() < 1.5, "{gpu} at {percent}%: {factor:.3}, measured {measured}: {share:.1}");
        }
    }

    #[test]
    fn nonsensical_readings_give_a_bounded_factor() {
        for (drawn_mw, limit_mw, default_limit_mw) in
            [(0, 0, 0), (700_000, 0, 0), (700_000, 100_000, 700_000), (0, u32::MAX, u32::MAX), (u32::MAX, 1, 0)]
        {
            for (used_ns, passed_ns) in [(0, 1), (1, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
                let factor = slowdown(Power { drawn_mw, limit_mw, default_limit_mw }, used_ns, passed_ns);
                assert!((ONE..=MAX_RATIO as u32).contains(&factor), "{factor}");
            }
        }
    }
}
