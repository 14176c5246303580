//! `vgpu-bench --library PATH [--peer PATH]... [--limits 25,50,75] [--seconds 5] [--rounds 1] [--jobs 0,1] [--mps FOLDER] [PART]...`, or
//! `vgpu-bench container FOLDER PERCENT`, which makes the files for `VGPU_DIR=FOLDER LD_PRELOAD=libvgpu.so PROGRAM`.
//!
//! Prints, for native, ours and each peer, the share of its own solo throughput that a tenant gets. Everything is measured in one
//! run on one machine, native first. Parts: `shares`, `pair`, `mixed`, `tenants`, `soft`, `launch`, `latency`, `four`, `neighbour`, `hostile`,
//! `beside`, `eight`; all without any. `mps`, with the folder of a running daemon's pipes, is the same for containers that are its clients.
//!
//! A share is launches finished ÷ wall time × what one takes alone, which is native's wall time by its launches in the same job. With
//! `--rounds` the sides of `shares` and `launch` take turns so often: very short kernels take 3% longer in some starts of a program than in others,
//! with or without a library.

mod beside;
mod contention;
mod hostile;
mod kernel;
mod run;
mod tenant;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use vgpu_test_programs::cuda;

use run::{Side, Tenant, Told};
use tenant::Job;

struct Options {
    library: PathBuf,
    peers: Vec<PathBuf>,
    limits: Vec<u32>,
    seconds: f64,
    rounds: usize,
    jobs: Vec<usize>,
    mps: Option<PathBuf>,
    parts: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["container", folder, percent] => {
            run::container(Path::new(folder), percent.parse().unwrap_or(0), 0).map_err(|error| format!("{folder}: {error}"))
        }
        ["beside", library, folder, stream] => beside::launches(Path::new(library), Path::new(folder), *stream == beside::DEFAULT)
            .map_err(|code| format!("beside: {}", cuda::name(code))),
        ["tenant", ..] => run_tenant(&arguments[1..]).map_err(|code| format!("tenant: {}", cuda::name(code))),
        _ => options(&arguments).and_then(|options| measure(&options).map_err(|error| error.to_string())),
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
        after: 0,
    };
    match words.first().map(String::as_str) {
        Some("busy") => tenant::busy(&job),
        Some("threads") => tenant::threads(&job),
        Some("now-and-then") => tenant::now_and_then(&job),
        Some("launches") => tenant::launches(job.streams),
        Some("garbage") => hostile::garbage(&job),
        Some("forks") => hostile::forks(&job),
        _ => tenant::calibrate(),
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        library: PathBuf::new(),
        peers: vec![],
        limits: vec![25, 50, 75],
        seconds: 5.0,
        rounds: 1,
        jobs: (0..JOBS.len()).collect(),
        mps: None,
        parts: vec![],
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--library" => options.library = value()?.into(),
            "--peer" => options.peers.push(value()?.into()),
            "--limits" => options.limits = value()?.split(',').filter_map(|limit| limit.parse().ok()).collect(),
            "--mps" => options.mps = Some(value()?.into()),
            "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds needs a number")?,
            "--rounds" => options.rounds = value()?.parse().ok().filter(|&rounds| rounds > 0).ok_or("--rounds needs a number from 1")?,
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
    if wanted("beside") {
        for stream in ["own", beside::DEFAULT] {
            run::beside(&options.library, &bench.folder.join("beside"), stream)?;
        }
    }
    if wanted("shares") {
        bench.shares()?;
    }
    if wanted("pair") {
        bench.pair()?;
    }
    if wanted("mixed") {
        bench.mixed()?;
    }
    contention::run(&bench, wanted)
}

/// Wall clock in ms since 1970, so many from now.
fn soon(millis: u128) -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_millis()) + millis
}

/// What a tenant got between two times in µs, if one launch takes `solo` µs alone.
fn share_between(told: &Told, from: f64, to: f64, solo: f64) -> f64 {
    told.between(from, to) / (to - from) * solo
}

fn average(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// The least and the greatest of several, for behind their mean or median.
fn from_to(figures: &[f64], digits: usize) -> String {
    let (least, most) = (figures.iter().copied().fold(f64::MAX, f64::min), figures.iter().copied().fold(f64::MIN, f64::max));
    if figures.len() > 1 { format!(" [{least:.digits$}..{most:.digits$}]") } else { String::new() }
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

    /// µs that a tenant is at work after its first second.
    fn after_first(&self) -> f64 {
        (self.options.seconds + 0.2) * 1e6
    }

    /// µs that a launch takes alone.
    fn solo(&self, job: &Job) -> std::io::Result<(f64, Told)> {
        let told = Tenant::start(&Side::Native, "busy", job)?.finish()?;
        Ok(((self.end() - 1e6) / told.between(1e6, self.end()), told))
    }

    /// What a tenant got after the first second.
    fn share(&self, told: &Told, solo: f64) -> f64 {
        share_between(told, 1e6, self.end(), solo)
    }

    /// Standard deviation of the shares of tenths of a second, after the first second.
    fn spread(&self, told: &Told, solo: f64) -> f64 {
        let mean = self.share(told, solo);
        let windows = told.windows(1e6, self.end(), 1e5);
        (windows.iter().map(|rate| (rate * solo - mean).powi(2)).sum::<f64>() / windows.len().max(1) as f64).sqrt()
    }

    /// Prints what a tenant got, as the mean of its runs.
    fn show(&self, name: &str, runs: &[Told], solo: f64, native_cpu: f64) {
        let shares: Vec<f64> = runs.iter().map(|told| self.share(told, solo)).collect();
        let mean = |of: &dyn Fn(&Told) -> f64| average(&runs.iter().map(of).collect::<Vec<_>>());
        let (share, sd) = (average(&shares), mean(&|told| self.spread(told, solo)));
        let first = mean(&|told| told.between(0.0, 1e6) / 1e6 * solo);
        // What the tenant itself needs for its launches natively is not the limit's.
        let cpu = mean(&|told| told.cpu) / self.after_first() - native_cpu * share;
        println!("  {name:<24} {share:.4}{} (sd {sd:.4}; first {first:.3}) cpu {:.1}%", from_to(&shares, 4), cpu * 100.0);
    }

    /// Sides take turns, so that a machine that slows down slows all of them; what is shown is the median of three or more, and the least.
    fn launch(&self) -> std::io::Result<()> {
        println!("an empty launch, bursts of 900 and a pause: median and 99th percentile in ns");
        for threads in [1, 4] {
            let job = Job { streams: threads, ..Job::default() };
            let mut sides =
                vec![("native", Side::Native), ("ours, no limit", self.ours("free", 0)?), ("ours, 90%", self.ours("spare", 90)?)];
            sides.extend(self.options.peers.iter().map(|peer| ("peer, no limit", Side::Peer(peer.clone(), 0))));
            let mut figures = vec![vec![]; sides.len()];
            for _ in 0..self.options.rounds.max(3) {
                for ((_, side), figures) in sides.iter().zip(&mut figures) {
                    figures.push(Tenant::start(side, "launches", &job)?.finish()?.figures);
                }
            }
            for ((name, _), figures) in sides.iter().zip(figures) {
                let told = |place: usize| {
                    let mut all: Vec<f64> = figures.iter().filter_map(|figures| figures.get(place).copied()).collect();
                    all.sort_by(f64::total_cmp);
                    format!("{:.0}{}", all.get(all.len() / 2).copied().unwrap_or(f64::NAN), from_to(&all, 0))
                };
                println!("  {threads} thread(s), {name:<16} {} {}", told(0), told(1));
            }
        }
        Ok(())
    }

    fn shares(&self) -> std::io::Result<()> {
        // Ours is none, and has a new container each time.
        let peers: Vec<Option<&PathBuf>> = std::iter::once(None).chain(self.options.peers.iter().map(Some)).collect();
        let sides: Vec<_> = self.options.limits.iter().flat_map(|&limit| peers.iter().map(move |&peer| (limit, peer))).collect();
        for (name, length, streams, graph) in self.options.jobs.iter().filter_map(|&job| JOBS.get(job).copied()) {
            let job = self.job(length, streams, graph);
            let (mut solos, mut native, mut runs) = (vec![], vec![], vec![vec![]; sides.len()]);
            for _ in 0..self.options.rounds {
                let (solo, told) = self.solo(&job)?;
                solos.push(solo);
                native.push(told);
                for (&(limit, peer), runs) in sides.iter().zip(&mut runs) {
                    let side = match peer {
                        None => self.ours("shares", limit)?,
                        Some(peer) => Side::Peer(peer.clone(), limit),
                    };
                    runs.push(Tenant::start(&side, "busy", &job)?.finish()?);
                }
            }
            let solo = average(&solos);
            let cpu = average(&native.iter().map(|told| told.cpu).collect::<Vec<_>>()) / self.after_first();
            let sd = average(&native.iter().map(|told| self.spread(told, solo)).collect::<Vec<_>>());
            let nominal = length * f64::from(graph.max(1)) / solo;
            println!("{name}: alone {solo:.2}{} us each (sd {sd:.4}), {nominal:.4} of the nominal", from_to(&solos, 2));
            for ((limit, peer), runs) in sides.iter().zip(&runs) {
                let name = peer.and_then(|peer| peer.file_name()).map_or("ours".into(), std::ffi::OsStr::to_string_lossy);
                self.show(&format!("{name} {limit}%"), runs, solo, cpu);
            }
        }
        Ok(())
    }

    /// Starts tenants together, a second from now or when the slowest has its context.
    fn together(&self, tenants: &[(Side, &str, Job)]) -> std::io::Result<Vec<Told>> {
        let begin = soon(1000 + 200 * tenants.len() as u128);
        let started: Vec<_> = tenants
            .iter()
            .map(|(side, what, job)| Tenant::start(side, what, &Job { begin: begin + u128::from(job.after), ..job.clone() }))
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
                let parts: Vec<f64> = told.iter().map(|told| self.share(told, solo)).collect();
                println!("two processes of one container, {length} us, {limit}%: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
            }
        }
        Ok(())
    }

    /// Processes, and threads, of one container whose kernels differ: nobody is to starve.
    fn mixed(&self) -> std::io::Result<()> {
        for lengths in [[20.0, 2_000.0], [200.0, 20_000.0]] {
            let jobs = lengths.map(|length| self.job(length, 1, 0));
            let solo = [self.solo(&jobs[0])?.0, self.solo(&jobs[1])?.0];
            for &limit in &self.options.limits {
                let side = self.ours("mixed", limit)?;
                let [first, second] = jobs.clone();
                let told = self.together(&[(side.clone(), "busy", first), (side, "busy", second)])?;
                let parts = [self.share(&told[0], solo[0]), self.share(&told[1], solo[1])];
                println!("processes of {lengths:?} us in one container, {limit}%: {parts:.4?} sum {:.4}", parts.iter().sum::<f64>());
                let threads = Tenant::start(&self.ours("threads", limit)?, "threads", &jobs[0])?.finish()?;
                let parts: Vec<f64> = threads.figures.iter().map(|work| work / (self.end() - 8e5)).collect();
                println!("threads of one process, {} us and 200 times that, {limit}%: {parts:.4?}", lengths[0]);
            }
        }
        Ok(())
    }
}
