//! Two busy tenants beside each other, with kernels of many lengths.

use crate::bench::{Bench, name_of, share_between};
use crate::run::{Output, Side};
use crate::tenant::Job;

/// Lengths of both tenants' kernels, in µs.
const LENGTHS: [(f64, f64); 6] =
    [(20.0, 20.0), (200.0, 200.0), (2_000.0, 2_000.0), (10_000.0, 10_000.0), (100_000.0, 100_000.0), (200.0, 10_000.0)];
/// Limits of both tenants, in percent.
const LIMITS: [(u32, u32); 2] = [(30, 70), (50, 50)];

/// Measures two busy tenants natively and with limits. Counts over whole seconds: turns and periods of limits then fit in many times.
pub fn part(bench: &Bench<'_>) -> std::io::Result<()> {
    let seconds = bench.options.seconds.ceil().max(1.0);
    let wanted = |(a, b): &(f64, f64)| bench.options.wants_kernel(*a) && bench.options.wants_kernel(*b);
    for (a, b) in LENGTHS.into_iter().filter(wanted) {
        let jobs = [a, b].map(|length| Job { seconds: seconds + 1.2, ..bench.job(length, 1, 0) });
        let first = bench.solo(&jobs[0])?.0;
        let solos = [first, if a == b { first } else { bench.solo(&jobs[1])?.0 }];
        println!("two busy tenants, {} beside {}: alone {:.1} and {:.1} us", name_of(a), name_of(b), solos[0], solos[1]);
        let print_row = |name: &str, output: &[Output], more: &str| {
            let shares = output.iter().zip(solos).map(|(output, solo)| share_between(output, 1e6, (seconds + 1.0) * 1e6, solo));
            let shares: Vec<f64> = shares.collect();
            let sum: f64 = shares.iter().sum();
            println!("  {name:<12} {shares:.4?} sum {sum:.4}, {:+.2}% of 1{more}", (sum - 1.0) * 100.0);
        };
        if !bench.options.only_ours {
            let output = bench.together(&jobs.clone().map(|job| (Side::Native, "busy", job)))?;
            print_row("native", &output, "");
        }
        for (limit, other) in LIMITS {
            let [first, second] = jobs.clone();
            let (output, cpu) = bench.together_limited(&[(limit, first), (other, second)])?;
            print_row(&format!("ours {limit} / {other}"), &output, &format!(", the arbiter took {cpu:.2}% of a core"));
        }
    }
    Ok(())
}
