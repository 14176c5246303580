//! A tenant that answers requests, alone and beside busy tenants.

use crate::bench::{Bench, name_of, percentile, share_between};
use crate::run::{Side, Tenant};
use crate::tenant::Job;

type Io<T> = std::io::Result<T>;

/// Length of a request's kernels, in µs.
const KERNEL_US: f64 = 50.0;
/// Kinds of requests: kernels, and mean number of requests in a second.
const KINDS: [(u32, f64); 2] = [(20, 50.0), (10, 200.0)];
/// Limit of the tenant with the requests, in percent.
const LIMIT: u32 = 30;
/// Lengths of the kernels of a single busy tenant, in µs.
const LENGTHS: [f64; 5] = [200.0, 2_000.0, 10_000.0, 100_000.0, f64::INFINITY];
/// Limit of a single busy tenant, in percent.
const BUSY_LIMIT: u32 = 70;
/// Several busy tenants beside it: lengths of their kernels in µs, and limits in percent.
const SEVERAL: [&[(f64, u32)]; 2] = [&[(200.0, 30), (2_000.0, 70)], &[(200.0, 25), (2_000.0, 25), (100_000.0, 20)]];
/// Time for which busy tenants run before the first request can arrive, in ms. The tenant with the requests warms up meanwhile.
const LEAD_MS: u64 = 2_500;
/// Time for which busy tenants go on launching after the last request can arrive, in seconds.
const REST: f64 = 1.0;

/// A busy tenant.
#[derive(Clone)]
struct Busy {
    length_us: f64,
    limit: u32,
    job: Job,
    /// Time of a kernel alone in µs; `None` if it never ends.
    solo: Option<f64>,
}

/// What one run showed.
struct Seen {
    /// Latency in ms: median, 90th and 99th percentile.
    latency: [f64; 3],
    /// Share of the GPU that the requests need.
    used: f64,
    /// Shares of the busy tenants; `None` for an endless kernel.
    shares: Vec<Option<f64>>,
}

/// Measures the latency of requests, alone and beside busy tenants, natively and with limits.
pub fn part(bench: &Bench<'_>) -> Io<()> {
    let lengths = LENGTHS.into_iter().filter(|&length| bench.options.wants_kernel(length));
    let busy = lengths.map(|length| busy(bench, length)).collect::<Io<Vec<_>>>()?;
    let mut neighbours: Vec<Vec<Busy>> = busy.iter().map(|busy| vec![busy.clone()]).collect();
    let limited = |&(length, limit): &_| Some(Busy { limit, ..busy.iter().find(|busy| busy.length_us == length)?.clone() });
    neighbours.extend(SEVERAL.iter().filter_map(|several| several.iter().map(limited).collect::<Option<Vec<_>>>()));
    for (number, kind) in KINDS.into_iter().enumerate() {
        if bench.options.kinds.is_empty() || bench.options.kinds.contains(&number) {
            measure(bench, kind, &neighbours)?;
        }
    }
    Ok(())
}

/// Returns a single busy tenant with kernels of this length.
fn busy(bench: &Bench<'_>, length_us: f64) -> Io<Busy> {
    let endless = length_us.is_infinite();
    let job = if endless { bench.endless() } else { bench.job(length_us, 1, 0) };
    let solo = if endless { None } else { Some(bench.solo(&job)?.0) };
    let seconds = LEAD_MS as f64 / 1e3 + bench.options.seconds + REST;
    Ok(Busy { length_us, limit: BUSY_LIMIT, job: Job { seconds, ..job }, solo })
}

/// Measures requests of one kind, alone and beside each of these groups of busy tenants.
fn measure(bench: &Bench<'_>, kind: (u32, f64), neighbours: &[Vec<Busy>]) -> Io<()> {
    let (launches, per_second) = kind;
    println!("requests of {} ms, {per_second} a second: latency in ms", f64::from(launches) * KERNEL_US / 1e3);
    let native = run(bench, kind, &[], false)?;
    println!("  {:<51} {}", "alone, native", latency(&native));
    let ours = run(bench, kind, &[], true)?;
    let to_native = ratios(&ours, &native);
    println!("  {:<51} {}; to native {to_native}", format!("alone, ours {LIMIT}"), latency(&ours));
    for busy in neighbours {
        let lengths: Vec<String> = busy.iter().map(|busy| name_of(busy.length_us)).collect();
        let limits: Vec<String> = busy.iter().map(|busy| busy.limit.to_string()).collect();
        let name = format!("beside {}", lengths.join(", "));
        if !bench.options.only_ours {
            let seen = run(bench, kind, busy, false)?;
            println!("  {:<51} {}; to alone {}{}", format!("{name}, native"), latency(&seen), ratios(&seen, &native), shares(&seen));
        }
        let seen = run(bench, kind, busy, true)?;
        println!(
            "  {:<51} {}; to alone {}, to alone natively {}{}",
            format!("{name}, ours {LIMIT} / {}", limits.join(" / ")),
            latency(&seen),
            ratios(&seen, &ours),
            ratios(&seen, &native),
            shares(&seen)
        );
    }
    Ok(())
}

/// Runs the requests beside these busy tenants, with the limits and an arbiter if `limited`.
fn run(bench: &Bench<'_>, (launches, per_second): (u32, f64), busy: &[Busy], limited: bool) -> Io<Seen> {
    let seconds = bench.options.seconds;
    let requests = Job { launches, per_second, seconds, delay_ms: LEAD_MS, ..bench.job(KERNEL_US, 1, 0) };
    let limits: Vec<u32> = std::iter::once(LIMIT).chain(busy.iter().map(|busy| busy.limit)).collect();
    let (arbiter, sides) = if limited {
        let (arbiter, sides) = bench.limited(&limits)?;
        (Some(arbiter), sides)
    } else {
        (None, vec![Side::Native; limits.len()])
    };
    let jobs = std::iter::once(("requests", requests)).chain(busy.iter().map(|busy| ("busy", busy.job.clone())));
    let tenants: Vec<_> = sides.into_iter().zip(jobs).map(|(side, (what, job))| (side, what, job)).collect();
    let mut started = bench.start_together(&tenants)?.0.into_iter();
    let mut waits = started.next().map(Tenant::finish).transpose()?.unwrap_or_default().waits;
    // The busy tenants' times count from their own start.
    let from = LEAD_MS as f64 * 1e3;
    let share = |tenant: Tenant, solo| Ok::<_, std::io::Error>(share_between(&tenant.finish()?, from, from + seconds * 1e6, solo));
    let shares = started.zip(busy).map(|(tenant, busy)| match busy.solo {
        Some(solo) => share(tenant, solo).map(Some),
        None => {
            tenant.end();
            Ok(None)
        }
    });
    let shares = shares.collect::<Io<_>>()?;
    if let Some(arbiter) = arbiter {
        arbiter.stop();
    }
    waits.sort_by(f64::total_cmp);
    let latency = [0.5, 0.9, 0.99].map(|part| percentile(&waits, part) / 1e3);
    let used = waits.len() as f64 * f64::from(launches) * KERNEL_US / (seconds * 1e6);
    Ok(Seen { latency, used, shares })
}

/// Formats the latency.
fn latency(seen: &Seen) -> String {
    let [p50, p90, p99] = seen.latency;
    format!("p50 {p50:.2} p90 {p90:.2} p99 {p99:.2}")
}

/// Formats the ratio of a latency to another.
fn ratios(seen: &Seen, base: &Seen) -> String {
    let [p50, p90, p99] = std::array::from_fn(|place| seen.latency[place] / base.latency[place]);
    format!("x{p50:.2} x{p90:.2} x{p99:.2}")
}

/// Formats the shares of the busy tenants and the sum of all.
fn shares(seen: &Seen) -> String {
    let Some(shares) = seen.shares.iter().copied().collect::<Option<Vec<f64>>>() else { return String::new() };
    format!("; requests {:.4}, busy {shares:.4?}, sum {:.4}", seen.used, seen.used + shares.iter().sum::<f64>())
}
