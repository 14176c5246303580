//! `vgpu-bench --library PATH [--peer PATH]... [--limits 25,50,75] [--seconds 5] [--jobs 0,1] [PART]...`, or
//! `vgpu-bench container FOLDER PERCENT`, which makes the files for `VGPU_DIR=FOLDER LD_PRELOAD=libvgpu.so PROGRAM`.
//!
//! Prints, for native, ours and each peer, the share of its own solo throughput that a tenant gets. Everything is measured in one
//! run on one machine, native first. Parts: `shares`, `pair`, `tenants`, `soft`, `launch`, `latency`; all without any.
//!
//! A share is launches finished ÷ wall time × what one takes alone, which is native's wall time by its launches in the same job.

mod kernel;
mod run;
mod tenant;

use std::path::PathBuf;
use std::process::ExitCode;

use run::{Side, Tenant, Told};
use tenant::Job;

struct Options {
    library: PathBuf,
    peers: Vec<PathBuf>,
    limits: Vec<u32>,
    seconds: f64,
    jobs: Vec<usize>,
    parts: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, folder, percent] = arguments.as_slice()
        && what == "container"
    {
        return run::container(std::path::Path::new(folder), percent.parse().unwrap_or(0), 0)
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let result = if arguments.first().is_some_and(|first| first == "tenant") {
        run_tenant(&arguments[1..]).map_err(|code| format!("tenant: {}", vgpu_test_programs::cuda::name(code)))
    } else {
        options(&arguments).and_then(|options| measure(&options).map_err(|error| error.to_string()))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("vgpu-bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run_tenant(words: &[String]) -> kernel::Result<()> {
    let figure = |place: usize| words.get(place).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    let job = Job {
        rounds: figure(1) as u32,
        length: figure(2),
        seconds: figure(3),
        streams: figure(4) as usize,
        graph: figure(5) as u32,
        every: figure(6) as u64,
        begin: figure(7) as u128,
    };
    match words.first().map(String::as_str) {
        Some("busy") => tenant::busy(&job),
        Some("now-and-then") => tenant::now_and_then(&job),
        Some("launches") => tenant::launches(job.streams),
        _ => tenant::calibrate(),
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        library: PathBuf::new(),
        peers: vec![],
        limits: vec![25, 50, 75],
        seconds: 5.0,
        jobs: (0..JOBS.len()).collect(),
        parts: vec![],
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--library" => options.library = value()?.into(),
            "--peer" => options.peers.push(value()?.into()),
            "--limits" => options.limits = value()?.split(',').filter_map(|limit| limit.parse().ok()).collect(),
            "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds needs a number")?,
            "--jobs" => options.jobs = value()?.split(',').filter_map(|job| job.parse().ok()).collect(),
            part if !part.starts_with('-') => options.parts.push(part.to_owned()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    if options.library.is_file() { Ok(options) } else { Err("--library PATH is needed: libvgpu.so".to_owned()) }
}

/// The jobs of the table: name, length of a kernel in µs, streams, launches in a graph.
const JOBS: [(&str, f64, usize, u32); 8] = [
    ("5 us", 5.0, 1, 0),
    ("20 us", 20.0, 1, 0),
    ("200 us", 200.0, 1, 0),
    ("2 ms", 2_000.0, 1, 0),
    ("20 ms", 20_000.0, 1, 0),
    ("100 ms", 100_000.0, 1, 0),
    ("graph 20 x 100 us", 100.0, 1, 20),
    ("4 streams, 200 us", 200.0, 4, 0),
];

fn measure(options: &Options) -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let calibrated = Tenant::start(&Side::Native, "calibrate", &Job::default())?.finish()?;
    let per_us = calibrated.figures.first().copied().unwrap_or(1.0);
    let bench = Bench { options, folder: folder.path().to_owned(), per_us };
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|wanted| wanted == part);
    println!("rounds per us {per_us:.1}; {} s after the first; share (sd over 100 ms; first second) cpu of a core", options.seconds);
    if wanted("launch") {
        bench.launch()?;
    }
    if wanted("shares") {
        bench.shares()?;
    }
    if wanted("pair") {
        bench.pair()?;
    }
    if wanted("tenants") {
        bench.tenants()?;
    }
    if wanted("soft") {
        bench.soft()?;
    }
    if wanted("latency") {
        bench.latency()?;
    }
    Ok(())
}

struct Bench<'a> {
    options: &'a Options,
    folder: PathBuf,
    per_us: f64,
}

impl Bench<'_> {
    fn job(&self, length: f64, streams: usize, graph: u32) -> Job {
        let rounds = (length * self.per_us) as u32;
        Job { rounds, length, seconds: self.options.seconds + 1.2, streams, graph, ..Job::default() }
    }

    fn ours(&self, name: &str, percent: u32) -> std::io::Result<Side> {
        let folder = self.folder.join(name);
        run::container(&folder, percent, 0)?;
        Ok(Side::Ours(self.options.library.clone(), folder))
    }

    fn end(&self) -> f64 {
        (self.options.seconds + 1.0) * 1e6
    }

    /// µs that a launch takes alone.
    fn solo(&self, job: &Job) -> std::io::Result<(f64, Told)> {
        let told = Tenant::start(&Side::Native, "busy", job)?.finish()?;
        Ok(((self.end() - 1e6) / told.between(1e6, self.end()), told))
    }

    fn show(&self, name: &str, told: &Told, solo: f64, native_cpu: f64) {
        let windows = told.windows(1e6, self.end(), 1e5);
        let shares: Vec<f64> = windows.iter().map(|rate| rate * solo).collect();
        let mean = told.between(1e6, self.end()) / (self.end() - 1e6) * solo;
        let sd = (shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / shares.len().max(1) as f64).sqrt();
        let first = told.between(0.0, 1e6) / 1e6 * solo;
        // What the tenant itself needs for its launches natively is not the limit's.
        let cpu = told.cpu / (self.end() + 2e5) - native_cpu * mean;
        println!("  {name:<24} {mean:.4} (sd {sd:.4}; first {first:.3}) cpu {:.1}%", cpu * 100.0);
    }

    /// Sides take turns, so that a machine that slows down slows all of them; what is shown is the median of three.
    fn launch(&self) -> std::io::Result<()> {
        println!("an empty launch, bursts of 900 and a pause: median and 99th percentile in ns");
        for threads in [1, 4] {
            let job = Job { streams: threads, ..Job::default() };
            let mut sides =
                vec![("native", Side::Native), ("ours, no limit", self.ours("free", 0)?), ("ours, 90%", self.ours("spare", 90)?)];
            sides.extend(self.options.peers.iter().map(|peer| ("peer, no limit", Side::Peer(peer.clone(), 0))));
            let mut figures = vec![vec![]; sides.len()];
            for _ in 0..3 {
                for ((_, side), figures) in sides.iter().zip(&mut figures) {
                    figures.push(Tenant::start(side, "launches", &job)?.finish()?.figures);
                }
            }
            for ((name, _), figures) in sides.iter().zip(figures) {
                let middle = |place: usize| {
                    let mut all: Vec<f64> = figures.iter().filter_map(|figures| figures.get(place).copied()).collect();
                    all.sort_by(f64::total_cmp);
                    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
                };
                println!("  {threads} thread(s), {name:<16} {:.0} {:.0}", middle(0), middle(1));
            }
        }
        Ok(())
    }

    fn shares(&self) -> std::io::Result<()> {
        for (name, length, streams, graph) in self.options.jobs.iter().filter_map(|&job| JOBS.get(job).copied()) {
            let job = self.job(length, streams, graph);
            let (solo, told) = self.solo(&job)?;
            let cpu = told.cpu / (self.end() + 2e5);
            println!("{name}: alone {solo:.2} us each, {:.4} of the nominal", length * f64::from(graph.max(1)) / solo);
            for &limit in &self.options.limits {
                let told = Tenant::start(&self.ours("shares", limit)?, "busy", &job)?.finish()?;
                self.show(&format!("ours {limit}%"), &told, solo, cpu);
                for peer in &self.options.peers {
                    let told = Tenant::start(&Side::Peer(peer.clone(), limit), "busy", &job)?.finish()?;
                    self.show(&format!("{} {limit}%", peer.file_name().unwrap_or_default().to_string_lossy()), &told, solo, cpu);
                }
            }
        }
        Ok(())
    }

    /// Starts tenants together, half a second from now or when the slowest has its context.
    fn together(&self, tenants: &[(Side, &str, Job)]) -> std::io::Result<Vec<Told>> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let started: Vec<_> = tenants
            .iter()
            .map(|(side, what, job)| Tenant::start(side, what, &Job { begin: now + 1200, ..job.clone() }))
            .collect::<std::io::Result<_>>()?;
        started.into_iter().map(Tenant::finish).collect()
    }

    fn pair(&self) -> std::io::Result<()> {
        for length in [200.0, 2_000.0] {
            let job = self.job(length, 1, 0);
            let (solo, _) = self.solo(&job)?;
            for &limit in &self.options.limits {
                let side = self.ours("pair", limit)?;
                let told = self.together(&[(side.clone(), "busy", job.clone()), (side, "busy", job.clone())])?;
                let share = |told: &Told| told.between(1e6, self.end()) / (self.end() - 1e6) * solo;
                let parts: Vec<f64> = told.iter().map(share).collect();
                println!("two processes of one container, {length} us, {limit}%: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
            }
        }
        Ok(())
    }

    /// Two sides of ours, as containers in a folder that an arbiter watches.
    fn two(&self, first: u32, second: u32) -> std::io::Result<[Side; 2]> {
        Ok([self.ours("turns/a", first)?, self.ours("turns/b", second)?])
    }

    fn tenants(&self) -> std::io::Result<()> {
        for (a, b) in [(2_000.0, 2_000.0), (200.0, 2_000.0), (200.0, 200.0)] {
            let jobs = [self.job(a, 1, 0), self.job(b, 1, 0)];
            let solo = [self.solo(&jobs[0])?.0, self.solo(&jobs[1])?.0];
            let row = |name: &str, [first, second]: [Side; 2]| -> std::io::Result<()> {
                let told = self.together(&[(first, "busy", jobs[0].clone()), (second, "busy", jobs[1].clone())])?;
                let parts: Vec<f64> =
                    told.iter().zip(solo).map(|(told, solo)| told.between(1e6, self.end()) / (self.end() - 1e6) * solo).collect();
                println!("two tenants, {a} and {b} us, {name}: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
                Ok(())
            };
            row("native", [Side::Native, Side::Native])?;
            for (first, second) in [(30, 70), (50, 50)] {
                row(&format!("ours {first} / {second}, no arbiter"), self.two(first, second)?)?;
                let sides = self.two(first, second)?;
                let (arbiter, begin) = (run::Arbiter::start(&self.folder.join("turns")), std::time::Instant::now());
                row(&format!("ours {first} / {second}"), sides)?;
                let cpu = arbiter.stop();
                println!("  the arbiter took {:.2}% of a core", cpu / begin.elapsed().as_micros() as f64 * 100.0);
                for peer in &self.options.peers {
                    row(&format!("peer {first} / {second}"), [Side::Peer(peer.clone(), first), Side::Peer(peer.clone(), second)])?;
                }
            }
        }
        self.four()
    }

    fn four(&self) -> std::io::Result<()> {
        let job = self.job(200.0, 1, 0);
        let solo = self.solo(&job)?.0;
        let tenants =
            (0..4).map(|n| Ok((self.ours(&format!("four/{n}"), 25)?, "busy", job.clone()))).collect::<std::io::Result<Vec<_>>>()?;
        let arbiter = run::Arbiter::start(&self.folder.join("four"));
        let told = self.together(&tenants)?;
        arbiter.stop();
        let parts: Vec<f64> = told.iter().map(|told| told.between(1e6, self.end()) / (self.end() - 1e6) * solo).collect();
        let (sum, squares): (f64, f64) = (parts.iter().sum(), parts.iter().map(|part| part * part).sum());
        println!("four tenants at 25%, 200 us: {parts:.4?} sum {sum:.4}, Jain's index {:.5}", sum * sum / (4.0 * squares));
        Ok(())
    }

    fn soft(&self) -> std::io::Result<()> {
        let (soft, hard) = (self.job(200.0, 1, 0), Job { seconds: self.options.seconds / 2.0, ..self.job(200.0, 1, 0) });
        let solo = self.solo(&soft)?.0;
        let sides = [self.ours("soft/a", 30)?, self.ours("soft/b", 60)?];
        run::container(&self.folder.join("soft/a"), 30, 100)?;
        let arbiter = run::Arbiter::start(&self.folder.join("soft"));
        let [first, second] = sides;
        let told = self.together(&[(first, "busy", soft), (second, "busy", hard.clone())])?;
        arbiter.stop();
        let middle = hard.seconds * 1e6;
        let share = |told: &Told, from: f64, to: f64| told.between(from, to) / (to - from) * solo;
        println!(
            "soft 100 on hard 30: {:.4} beside a tenant of 60 ({:.4}); {:.4} alone, from 200 ms after",
            share(&told[0], 2e5, middle - 1e5),
            share(&told[1], 2e5, middle - 1e5),
            share(&told[0], middle + 2e5, self.end())
        );
        Ok(())
    }

    fn latency(&self) -> std::io::Result<()> {
        let (small, large) = (Job { every: 50, ..self.job(1_000.0, 1, 0) }, self.job(200.0, 1, 0));
        let show = |name: &str, [first, second]: [Side; 2]| -> std::io::Result<()> {
            let mut told = self.together(&[(first, "now-and-then", small.clone()), (second, "busy", large.clone())])?;
            let waits = &mut told[0].waits;
            waits.sort_by(f64::total_cmp);
            let at = |part: f64| waits.get((part * (waits.len().max(1) - 1) as f64) as usize).copied().unwrap_or(f64::NAN);
            println!("a 1 ms kernel every 50 ms beside a busy tenant, {name}: median {:.0} us, 99th {:.0} us", at(0.5), at(0.99));
            Ok(())
        };
        show("native", [Side::Native, Side::Native])?;
        let sides = self.two(10, 90)?;
        let arbiter = run::Arbiter::start(&self.folder.join("turns"));
        show("ours 10 / 90", sides)?;
        arbiter.stop();
        Ok(())
    }
}
