//! What the clock gives a program beyond its time: a GPU that reaches its power limit lowers its clock, and one that rests in between does
//! not have to. A matmul that has an H200 for itself runs at 1.6 GHz and 700 W. Given half of the time it runs at 1.9 GHz, and got 0.6 of what
//! it gets alone. So that half is half, each nanosecond of such work counts for as many as it would take at the clock that the power limit
//! leaves to who has the GPU for itself.
//!
//! That is looked at once a second, only while launches are held back anyway.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use vgpu_region::budget::Budget;

use crate::engine::{Engine, Power};
use crate::turns::Gate;

/// How often it is looked at, in nanoseconds: NVML's power is a mean over one second.
const PERIOD: u64 = 1_000_000_000;
/// Two looks that lie further apart say nothing: what was used since is not what the power was drawn for.
const LONGEST: u64 = PERIOD / 4 * 5;
/// Who uses less than this part of the time is not looked at: what it draws cannot be told from what the GPU draws at rest.
const SELDOM: u64 = 6;
/// NVML's percentage may be higher than what was used by this part of that (an H200's matmuls got what fits a tenth); what is more, others use.
const OFF: u64 = 4;
/// What a GPU draws at rest with its clock up, in thousandths of its usual limit (H200: 124 W of 700 W).
const REST: u64 = 175;
/// GPUs of a lower limit, in milliwatts, draw a larger part of it at rest, and nobody has looked at one.
const LARGE: u32 = 300_000;
/// What time counts for, in parts of so many.
const WHOLE: u32 = 1024;
/// Work that draws more than twice what the GPU may draw is not believed; what was seen drew 1.5 times as much. In parts of [`WHOLE`].
const MOST: u64 = 2 * WHOLE as u64;

/// What time on one GPU counts for.
#[derive(Debug)]
pub struct Worth {
    /// In parts of [`WHOLE`]; 0 before anything was looked at.
    each: AtomicU32,
    next: AtomicU64,
    since: AtomicU64,
    used: AtomicU64,
}

impl Worth {
    /// Each nanosecond counts as one.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { each: AtomicU32::new(0), next: zero(), since: zero(), used: zero() }
    }

    /// What so many nanoseconds of GPU time count for.
    pub fn of(&self, nanos: i64) -> i64 {
        (i128::from(nanos) * i128::from(self.each.load(Relaxed).max(WHOLE)) / i128::from(WHOLE)) as i64
    }

    /// A launch is held back: a good moment to look, if it is time.
    pub fn look(&self, engine: &impl Engine, budget: &Budget, gate: &Gate, now: u64) {
        let next = self.next.load(Relaxed);
        if now < next || self.next.compare_exchange(next, now + PERIOD, AcqRel, Relaxed).is_err() {
            return;
        }
        let used = budget.used.load(Relaxed);
        let (since, before) = (self.since.swap(now, Relaxed), self.used.swap(used, Relaxed));
        let passed = now.saturating_sub(since);
        let known = self.each.load(Relaxed);
        let each = match known {
            // Where others use the GPU too, nobody's clock is higher for this one's rests.
            _ if gate.takes_turns() => WHOLE,
            // Nothing can be said, and what was said before gets old.
            1.. if passed > LONGEST => known.midpoint(WHOLE),
            0 if passed > LONGEST => return,
            0 => see(engine, gate, used.saturating_sub(before), passed),
            _ => known.midpoint(see(engine, gate, used.saturating_sub(before), passed)),
        };
        self.each.store(each, Relaxed);
    }
}

/// What a nanosecond counts for, by what was used of the time that has passed, both in nanoseconds.
fn see(engine: &impl Engine, gate: &Gate, used: u64, passed: u64) -> u32 {
    if used < passed / SELDOM {
        return WHOLE;
    }
    let Some(power) = engine.power(gate.uuid()).filter(|power| power.usual >= LARGE) else { return WHOLE };
    let alone = slowdown(power, used, passed);
    if alone == WHOLE {
        return WHOLE;
    }
    // Others may be there without turns.
    let Some(percent) = engine.busy(gate.uuid()) else { return WHOLE };
    let busy = passed / 100 * u64::from(percent);
    if busy > used.saturating_add(used / OFF) { slowdown(power, busy, passed) } else { alone }
}

/// How much longer work takes that has the GPU for itself than work that has it for `used` of `passed` nanoseconds and draws this power, in
/// parts of [`WHOLE`].
fn slowdown(power: Power, used: u64, passed: u64) -> u32 {
    let rest = u64::from(power.usual) * REST / 1000;
    let most = u64::from(power.limit).saturating_sub(rest);
    let drawn = u64::from(power.drawn).saturating_sub(rest).saturating_mul(passed) / used.max(1);
    if most == 0 || drawn <= most {
        return WHOLE;
    }
    let over = (drawn.saturating_mul(u64::from(WHOLE)) / most).min(MOST) - u64::from(WHOLE);
    // The power goes with the speed to the 2.4 (three H200s and an H100, matmuls at 10 to 90%: 2.1 to 3). This is within a percent of
    // the root.
    (u64::from(WHOLE) * (24 * u64::from(WHOLE) + 17 * over) / (24 * u64::from(WHOLE) + 7 * over)) as u32
}

#[cfg(test)]
mod tests {
    use crate::engine::Power;
    use crate::sim::gpu;
    use crate::sim::gpu::Gpu;
    use crate::sim::limits::Process;
    use crate::sim::limits::S;
    use crate::sim::limits::US;
    use crate::sim::limits::budget;
    use crate::sim::limits::give_turn;
    use core::sync::atomic::Ordering::Relaxed;
    use vgpu_region::budget::Rate;

    use super::*;

    /// The part of the time that a loop gets whose kernels draw so many watts, with others that make the GPU busy for so many percent.
    fn share(percent: u32, draws: u32, others: u32) -> f64 {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), percent, 1));
        gpu.draws.set(draws);
        gpu.others.set(others);
        let (stream, start) = (process.stream(0), gpu.now());
        while gpu.now() < start + 6 * S {
            process.launch(&gpu, stream, 1, 200 * US);
        }
        let (used, charged) = (gpu.used(start, start + 6 * S), process.meter.account.budget.used.load(Relaxed));
        assert!(used.abs_diff(charged) < used / 100 + 5_000 * US, "what is told is the time: used {used}, charged {charged}");
        gpu.used(start + 3 * S, start + 6 * S) as f64 / (3 * S) as f64 * 100.0
    }

    /// 868 W beyond rest is what a matmul draws at full clock; alone it is held to 577, and takes 1.2 times as long.
    #[test]
    fn work_that_would_be_slower_alone_counts_for_more() {
        let check = |percent: u32, draws, others, counts: f64, why| {
            let (got, expected) = (share(percent, draws, others), f64::from(percent) / counts);
            assert!((got - expected).abs() < 1.0, "{percent}%, {why}: {got:.2} of the time, not {expected:.2}");
        };
        for percent in [25, 50] {
            check(percent, 868, 0, 1.2, "alone");
            check(percent, 868, percent / 8, 1.2, "as NVML says more than was used");
            check(percent, 868, 100 - percent, 1.0, "others keep the clock down");
            check(percent, 560, 0, 1.0, "it draws little");
            check(percent, 0, 0, 1.0, "nobody tells");
        }
        check(10, 868, 0, 1.0, "too seldom to tell");
    }

    /// What a thousand nanoseconds count for after so long, in half of which the GPU worked.
    fn after(gpu: &Gpu, process: &Process, length: u64) -> i64 {
        let account = process.meter.account;
        let end = gpu.now() + length;
        gpu.launch(gpu::stream(1), length / 2);
        account.budget.charge(length as i64 / 2, Rate::new(50).unwrap());
        gpu.pass(end - gpu.now());
        account.worth.look(gpu, account.budget, &account.gate, gpu.now());
        account.worth.of(1000)
    }

    #[test]
    fn what_was_seen_gets_old() {
        let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
        gpu.draws.set(868);
        let told = [S, S, S, 2 * S, 2 * S, S].map(|length| after(&gpu, &process, length));
        assert!(told[0] == 1000 && told[1] > 1180 && told[2] > 1180, "{told:?}");
        assert!(told[3] < 1110 && told[4] < 1060 && told[5] > 1110, "{told:?}");
        give_turn(&process);
        process.meter.account.gate.pass(gpu.now() + 1, 0);
        assert_eq!(after(&gpu, &process, S), 1000, "others are at work, too");
    }

    #[test]
    fn small_cards_are_not_judged() {
        for (limit, least, most) in [(150, 1000, 1000), (350, 1150, 1250)] {
            let (gpu, process) = (Gpu::new(), Process::new(budget(), 50, 1));
            gpu.limit.set(limit);
            gpu.draws.set(limit * 868 / 700);
            let told = [S, S].map(|length| after(&gpu, &process, length));
            assert!((least..=most).contains(&told[1]), "{limit} W: {told:?}");
        }
    }

    /// What was measured: GPU, percent of the time, watts, and the speed beside that of the same work with the GPU for itself.
    #[test]
    fn speeds_are_those_that_were_seen() {
        for (gpu, percent, watts, seen) in [
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
            let power = Power { drawn: watts * 1000, limit: 700_000, usual: 700_000 };
            let slows = f64::from(slowdown(power, percent, 100)) / f64::from(WHOLE);
            let share = f64::from(u32::try_from(percent).unwrap()) * seen / slows;
            println!("{gpu} at {percent}%: {slows:.3}, seen {seen}: {share:.1}");
            assert!((share - percent as f64).abs() < 1.5, "{gpu} at {percent}%: {slows:.3}, seen {seen}: {share:.1}");
        }
    }

    #[test]
    fn nonsense_counts_as_it_is() {
        for (drawn, limit, usual) in [(0, 0, 0), (700_000, 0, 0), (700_000, 100_000, 700_000), (0, u32::MAX, u32::MAX), (u32::MAX, 1, 0)] {
            for (used, passed) in [(0, 1), (1, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
                let slows = slowdown(Power { drawn, limit, usual }, used, passed);
                assert!((WHOLE..=MOST as u32).contains(&slows), "{slows}");
            }
        }
    }
}
