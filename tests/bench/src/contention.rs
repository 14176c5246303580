//! Several tenants on one GPU.

use crate::bench::{Bench, percentile};
use crate::options::LIMITS;
use crate::run::{self, Arbiter, Output, Side};
use crate::tenant::Job;
use crate::{busy_pairs, equal, hostile, interactive};

type Io<T> = std::io::Result<T>;
type Part = fn(&Bench<'_>) -> Io<()>;

/// Runs the parts that are `wanted`.
///
/// # Errors
/// A tenant that cannot be started or fails.
pub fn run(bench: &Bench<'_>, wanted: impl Fn(&str) -> bool) -> Io<()> {
    let parts: [(&str, Part); 11] = [
        ("tenants", tenants),
        ("busy-pairs", busy_pairs::part),
        ("four", equal::four),
        ("neighbour", neighbour),
        ("soft", soft),
        ("latency", latency),
        ("interactive", interactive::part),
        ("hostile", hostile::part),
        ("eight", equal::eight),
        ("many", equal::many),
        ("mps", mps),
    ];
    parts.into_iter().filter(|(name, _)| wanted(name)).try_for_each(|(_, part)| part(bench))
}

/// Measures two tenants with and without the arbiter.
fn tenants(bench: &Bench<'_>) -> Io<()> {
    let solo = |length: f64| Ok::<_, std::io::Error>((length, bench.solo(&bench.job(length, 1, 0))?.0));
    let (short, long) = (solo(200.0)?, solo(2_000.0)?);
    // Only the requested jobs: 2 and 3 have these lengths.
    let wanted = |(length, _): &(f64, f64)| bench.options.jobs.contains(&if *length > 1_000.0 { 3 } else { 2 });
    for (a, b) in [(long, long), (short, long), (long, short), (short, short)].into_iter().filter(|(a, b)| wanted(a) && wanted(b)) {
        let jobs = [bench.job(a.0, 1, 0), bench.job(b.0, 1, 0)];
        let row = |name: &str, [first, second]: [Side; 2]| -> Io<()> {
            let output = bench.together(&[(first, "busy", jobs[0].clone()), (second, "busy", jobs[1].clone())])?;
            let parts = [bench.share(&output[0], a.1), bench.share(&output[1], b.1)];
            println!("two tenants, {} and {} us, {name}: {parts:.4?} sum {:.4}", a.0, b.0, parts.iter().sum::<f64>());
            Ok(())
        };
        row("native", [Side::Native, Side::Native])?;
        for (first, second) in [(30, 70), (50, 50)] {
            row(&format!("ours {first} / {second}, no arbiter"), bench.two(first, second)?)?;
            let sides = bench.two(first, second)?;
            let (arbiter, begin) = (Arbiter::start(&bench.folder.join("turns")), std::time::Instant::now());
            row(&format!("ours {first} / {second}"), sides)?;
            let cpu = arbiter.stop();
            println!("  the arbiter took {:.2}% of a core", cpu / begin.elapsed().as_micros() as f64 * 100.0);
            for peer in &bench.options.peers {
                row(&format!("peer {first} / {second}"), [Side::Peer(peer.clone(), first), Side::Peer(peer.clone(), second)])?;
            }
        }
    }
    Ok(())
}

/// Measures the limits of MPS, for one and for two tenants, and what the library charges for them.
fn mps(bench: &Bench<'_>) -> Io<()> {
    let Some(pipes) = &bench.options.mps else { return Ok(()) };
    let side = |name: &str, percent: u32| {
        let folder = bench.folder.join("mps").join(name);
        run::client_of_mps(&folder, percent)?;
        Ok::<_, std::io::Error>(Side::Mps(bench.options.library.clone(), folder, pipes.clone(), percent))
    };
    for length in [200.0, 2_000.0] {
        let job = bench.job(length, 1, 0);
        let solo = bench.solo(&job)?.0;
        for &limit in bench.options.limits(&LIMITS) {
            let folder = bench.folder.join("mps/a");
            let output = run::Tenant::start(&side("a", limit)?, "busy", &job)?.finish()?;
            println!(
                "under MPS, {length} us, {limit}%: {:.4}, charged {:.4}",
                bench.share(&output, solo),
                run::charged(&folder)? / bench.end()
            );
        }
        let output = bench.together(&[(side("a", 30)?, "busy", job.clone()), (side("b", 70)?, "busy", job.clone())])?;
        let parts: Vec<f64> = output.iter().map(|output| bench.share(output, solo)).collect();
        println!("under MPS, {length} us, 30 / 70: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
    }
    Ok(())
}

/// Measures a tenant at 30% next to one at 70% that works for half a second and rests for half a second.
fn neighbour(bench: &Bench<'_>) -> Io<()> {
    let (job, intermittent) = (bench.job(200.0, 1, 0), Job { every_ms: 500, ..bench.job(200.0, 1, 0) });
    let solo = bench.solo(&job)?.0;
    let [first, second] = bench.two(30, 70)?;
    let arbiter = Arbiter::start(&bench.folder.join("turns"));
    let output = bench.together(&[(first, "busy", job), (second, "busy", intermittent)])?;
    arbiter.stop();
    let shares = |output: &Output| output.windows(1e6, bench.end(), 5e5).iter().map(|rate| rate * solo).collect::<Vec<_>>();
    println!(
        "30% next to 70% that works and rests in turn: {:.4}; by half seconds {:.3?} next to {:.3?}",
        bench.share(&output[0], solo),
        shares(&output[0]),
        shares(&output[1])
    );
    Ok(())
}

/// Measures a soft limit before and after a neighbour starts.
fn soft(bench: &Bench<'_>) -> Io<()> {
    let (soft, hard) = (bench.job(200.0, 1, 0), Job { seconds: bench.options.seconds / 2.0, ..bench.job(200.0, 1, 0) });
    let solo = bench.solo(&soft)?.0;
    let [first, second] = [bench.ours("soft/a", 30)?, bench.ours("soft/b", 60)?];
    run::container(&bench.folder.join("soft/a"), 30, 100)?;
    // The tenant is alone first; the neighbour starts in the middle.
    let late = Job { delay_ms: (bench.options.seconds * 500.0) as u64 + 1000, ..hard.clone() };
    let arbiter = Arbiter::start(&bench.folder.join("soft"));
    let output = bench.together(&[(first, "busy", soft), (second, "busy", late.clone())])?;
    arbiter.stop();
    let neighbour_start = late.delay_ms as f64 * 1e3;
    let share = |output: &Output, from: f64, to: f64| output.between(from, to) / (to - from) * solo;
    // The neighbour's times count from its own start.
    println!(
        "soft 100 on hard 30: {:.4} alone, {:.4} from 200 ms to 400 ms after a neighbour of 60 started, {:.4} from then on; the neighbour {:.4}",
        share(&output[0], 1e6, neighbour_start),
        share(&output[0], neighbour_start + 2e5, neighbour_start + 4e5),
        share(&output[0], neighbour_start + 2e5, bench.end()),
        share(&output[1], 2e5, bench.end() - neighbour_start)
    );
    Ok(())
}

/// Measures the latency of a small kernel next to a busy tenant.
fn latency(bench: &Bench<'_>) -> Io<()> {
    let (small, large) = (Job { every_ms: 50, ..bench.job(1_000.0, 1, 0) }, bench.job(200.0, 1, 0));
    let show = |name: &str, [first, second]: [Side; 2]| -> Io<()> {
        let mut output = bench.together(&[(first, "periodic", small.clone()), (second, "busy", large.clone())])?;
        let waits = &mut output[0].waits;
        waits.sort_by(f64::total_cmp);
        let at = |part: f64| percentile(waits, part);
        println!("a 1 ms kernel every 50 ms next to a busy tenant, {name}: median {:.0} us, 99th {:.0} us", at(0.5), at(0.99));
        Ok(())
    };
    show("native", [Side::Native, Side::Native])?;
    let sides = bench.two(10, 90)?;
    let arbiter = Arbiter::start(&bench.folder.join("turns"));
    show("ours 10 / 90", sides)?;
    arbiter.stop();
    Ok(())
}
