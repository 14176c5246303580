//! A tenant alone, and processes and threads of one container.

use crate::bench::{Bench, average, range};
use crate::options::{JOBS, LIMITS};
use crate::run::{Output, Side, Tenant};
use crate::tenant::Job;

/// Measures an empty launch. The sides run in turn, so that a machine that slows down slows all of them. Prints the median of three or more
/// runs and their range.
pub fn launch(bench: &Bench<'_>) -> std::io::Result<()> {
    println!("an empty launch, in bursts of 900 with a pause: median and 99th percentile in ns");
    for threads in [1, 4] {
        let job = Job { streams: threads, ..Job::default() };
        let mut sides = vec![("native", Side::Native), ("ours, no limit", bench.ours("free", 0)?), ("ours, 90%", bench.ours("spare", 90)?)];
        sides.extend(bench.options.peers.iter().map(|peer| ("peer, no limit", Side::Peer(peer.clone(), 0))));
        let mut figures = vec![vec![]; sides.len()];
        for _ in 0..bench.options.rounds.max(3) {
            for ((_, side), figures) in sides.iter().zip(&mut figures) {
                figures.push(Tenant::start(side, "launches", &job)?.finish()?.figures);
            }
        }
        for ((name, _), figures) in sides.iter().zip(figures) {
            let summary = |index: usize| {
                let mut all: Vec<f64> = figures.iter().filter_map(|figures| figures.get(index).copied()).collect();
                all.sort_by(f64::total_cmp);
                format!("{:.0}{}", all.get(all.len() / 2).copied().unwrap_or(f64::NAN), range(&all, 0))
            };
            println!("  {threads} thread(s), {name:<16} {} {}", summary(0), summary(1));
        }
    }
    Ok(())
}

/// The limits of `alone`, in percent, unless `--limits` names others.
const LIMITS_ALONE: [u32; 5] = [10, 25, 50, 75, 90];

/// Runs a busy tenant. Returns its output and the arbiter's CPU use in percent of a core, if there is an arbiter.
type Runner<'a> = Box<dyn Fn(&Job) -> std::io::Result<(Output, Option<f64>)> + 'a>;

/// Measures the share of a tenant alone, for each job and limit, without an arbiter.
pub fn shares(bench: &Bench<'_>) -> std::io::Result<()> {
    let mut sides: Vec<(String, Runner<'_>)> = Vec::new();
    for &limit in bench.options.limits(&LIMITS) {
        // A new container for each run.
        let ours = move |job: &Job| Ok((Tenant::start(&bench.ours("shares", limit)?, "busy", job)?.finish()?, None));
        sides.push((format!("ours {limit}%"), Box::new(ours)));
        for peer in &bench.options.peers {
            let name = peer.file_name().map_or("peer".into(), std::ffi::OsStr::to_string_lossy);
            let theirs = move |job: &Job| Ok((Tenant::start(&Side::Peer(peer.clone(), limit), "busy", job)?.finish()?, None));
            sides.push((format!("{name} {limit}%"), Box::new(theirs)));
        }
    }
    measure(bench, &sides)
}

/// Measures the share of a tenant alone, for each job and limit, with an arbiter, as on a host.
pub fn alone(bench: &Bench<'_>) -> std::io::Result<()> {
    let mut sides: Vec<(String, Runner<'_>)> = Vec::new();
    for &limit in bench.options.limits(&LIMITS_ALONE) {
        for (number, library) in std::iter::once(&bench.options.library).chain(&bench.options.builds).enumerate() {
            let run = move |job: &Job| {
                let (output, cpu) = bench.together_limited_with(library, &[(limit, job.clone())])?;
                Ok((output.into_iter().next().unwrap_or_default(), Some(cpu)))
            };
            let name = if number == 0 { "ours".to_owned() } else { format!("build {number}") };
            sides.push((format!("{name} {limit}%, arbiter"), Box::new(run)));
        }
    }
    measure(bench, &sides)
}

/// Measures each job natively and on these sides, in turn, and prints their shares.
fn measure(bench: &Bench<'_>, sides: &[(String, Runner<'_>)]) -> std::io::Result<()> {
    for (name, length, streams, graph) in bench.options.jobs.iter().filter_map(|&job| JOBS.get(job).copied()) {
        let job = bench.job(length, streams, graph);
        let (mut solos, mut native, mut runs) = (vec![], vec![], vec![(vec![], vec![]); sides.len()]);
        for _ in 0..bench.options.rounds {
            let (solo, output) = bench.solo(&job)?;
            solos.push(solo);
            native.push(output);
            for ((_, run), (outputs, arbiter)) in sides.iter().zip(&mut runs) {
                let (output, cpu) = run(&job)?;
                outputs.push(output);
                arbiter.extend(cpu);
            }
        }
        let solo = average(&solos);
        let cpu = average(&native.iter().map(|output| output.cpu).collect::<Vec<_>>()) / bench.after_first();
        let sd = average(&native.iter().map(|output| bench.spread(output, solo)).collect::<Vec<_>>());
        let nominal = length * f64::from(graph.max(1)) / solo;
        println!("{name}: alone {solo:.2}{} us each (sd {sd:.4}) cpu {:.1}%, {nominal:.4} of the nominal", range(&solos, 2), cpu * 100.0);
        for ((name, _), (outputs, arbiter)) in sides.iter().zip(&runs) {
            let arbiter = if arbiter.is_empty() { String::new() } else { format!("; the arbiter took {:.2}% of a core", average(arbiter)) };
            print_share(bench, name, outputs, solo, cpu, &arbiter);
        }
    }
    Ok(())
}

/// Measures two processes of one container.
pub fn pair(bench: &Bench<'_>) -> std::io::Result<()> {
    for length in [200.0, 2_000.0] {
        let job = bench.job(length, 1, 0);
        let (solo, _) = bench.solo(&job)?;
        for &limit in bench.options.limits(&LIMITS) {
            let side = bench.ours("pair", limit)?;
            let output = bench.together(&[(side.clone(), "busy", job.clone()), (side, "busy", job.clone())])?;
            let parts: Vec<f64> = output.iter().map(|output| bench.share(output, solo)).collect();
            println!("two processes of one container, {length} us, {limit}%: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
        }
    }
    Ok(())
}

/// Measures processes and threads of one container with kernels of different lengths: none may starve.
pub fn mixed(bench: &Bench<'_>) -> std::io::Result<()> {
    for lengths in [[20.0, 2_000.0], [200.0, 20_000.0]] {
        let jobs = lengths.map(|length| bench.job(length, 1, 0));
        let solo = [bench.solo(&jobs[0])?.0, bench.solo(&jobs[1])?.0];
        for &limit in bench.options.limits(&LIMITS) {
            let side = bench.ours("mixed", limit)?;
            let [first, second] = jobs.clone();
            let output = bench.together(&[(side.clone(), "busy", first), (side, "busy", second)])?;
            let parts = [bench.share(&output[0], solo[0]), bench.share(&output[1], solo[1])];
            println!("processes of {lengths:?} us in one container, {limit}%: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
            let threads = Tenant::start(&bench.ours("threads", limit)?, "threads", &jobs[0])?.finish()?;
            let parts: Vec<f64> = threads.figures.iter().map(|work| work / (bench.end() - 8e5)).collect();
            println!("threads of one process, {} us and 200 times that, {limit}%: {parts:.4?}", lengths[0]);
        }
    }
    Ok(())
}

/// Prints a tenant's share, as the mean of its runs, and `more`.
fn print_share(bench: &Bench<'_>, name: &str, runs: &[Output], solo: f64, native_cpu: f64, more: &str) {
    let shares: Vec<f64> = runs.iter().map(|output| bench.share(output, solo)).collect();
    let mean = |of: &dyn Fn(&Output) -> f64| average(&runs.iter().map(of).collect::<Vec<_>>());
    let (share, sd) = (average(&shares), mean(&|output| bench.spread(output, solo)));
    let first = mean(&|output| output.between(0.0, 1e6) / 1e6 * solo);
    // The CPU time that launches take natively is not a cost of the limit.
    let cpu = mean(&|output| output.cpu) / bench.after_first() - native_cpu * share;
    println!("  {name:<24} {share:.4}{} (sd {sd:.4}; first {first:.3}) cpu {:.1}%{more}", range(&shares, 4), cpu * 100.0);
}
