//! Many tenants with equal limits.

use crate::bench::Bench;
use crate::run::{Output, Side};
use crate::tenant::Job;

type Io<T> = std::io::Result<T>;

/// Measures four equal tenants.
pub fn four(bench: &Bench<'_>) -> Io<()> {
    let (parts, _) = limited(bench, 4, 25)?;
    println!("four tenants at 25%, 200 us: {parts:.4?} sum {:.4}, Jain's index {:.5}", parts.iter().sum::<f64>(), jain(&parts));
    Ok(())
}

/// Measures eight equal tenants.
pub fn eight(bench: &Bench<'_>) -> Io<()> {
    let (parts, cpu) = limited(bench, 8, 12)?;
    println!("eight tenants at 12%, 200 us: {parts:.4?} sum {:.4}, the arbiter took {cpu:.2}% of a core", parts.iter().sum::<f64>());
    Ok(())
}

/// Runs `count` tenants with equal limits. Returns their shares and the arbiter's CPU use in percent of a core.
fn limited(bench: &Bench<'_>, count: usize, percent: u32) -> Io<(Vec<f64>, f64)> {
    let job = bench.job(200.0, 1, 0);
    let solo = bench.solo(&job)?.0;
    let (output, cpu) = bench.together_limited(&vec![(percent, job); count])?;
    Ok((shares(bench, &output, solo), cpu))
}

/// Measures 16 equal tenants, or as many as the command line says, natively and with limits.
pub fn many(bench: &Bench<'_>) -> Io<()> {
    let job = bench.job(500.0, 1, 0);
    for &count in &bench.options.tenants {
        let solo = bench.solo(&job)?.0;
        let job = Job { rest_ms: (bench.options.rest * 1_000.0) as u64, ..job.clone() };
        println!("{count} tenants, 500 us: alone {solo:.1} us");
        if !bench.options.only_ours {
            let tenants = vec![(Side::Native, "busy", job.clone()); count as usize];
            print_row("native", &shares(bench, &bench.together(&tenants)?, solo), 1.0 / f64::from(count), "");
        }
        let percent = 100 / count;
        let (output, cpu) = bench.together_limited(&vec![(percent, job.clone()); count as usize])?;
        let arbiter = format!(", the arbiter took {cpu:.2}% of a core");
        print_row(&format!("ours {percent}% each"), &shares(bench, &output, solo), f64::from(percent) / 100.0, &arbiter);
    }
    Ok(())
}

/// Prints what tenants got that should each get the share `due`.
fn print_row(name: &str, parts: &[f64], due: f64, more: &str) {
    let (least, most) = (parts.iter().copied().fold(f64::MAX, f64::min), parts.iter().copied().fold(f64::MIN, f64::max));
    println!(
        "  {name:<14} sum {:.4}, Jain's index {:.5}, got/share {:.3} to {:.3}{more}; {parts:.4?}",
        parts.iter().sum::<f64>(),
        jain(parts),
        least / due,
        most / due
    );
}

fn shares(bench: &Bench<'_>, output: &[Output], solo: f64) -> Vec<f64> {
    output.iter().map(|output| bench.share(output, solo)).collect()
}

/// Returns Jain's index of fairness: 1 if all are equal, down to 1 / their number.
fn jain(parts: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
    sum * sum / (parts.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn jains_index_is_between_a_single_winner_and_equality() {
        assert!((jain(&[0.25; 4]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
