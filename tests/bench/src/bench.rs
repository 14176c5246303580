//! A measurement: jobs, sides and shares.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::run::{self, Arbiter, Output, Side, Tenant};
use crate::tenant::Job;

/// Returns the wall-clock time in `millis` ms from now, in ms since 1970.
pub fn in_millis(millis: u128) -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_millis()) + millis
}

/// Returns a tenant's share between two times in µs, if one launch takes `solo` µs alone.
pub fn share_between(output: &Output, from: f64, to: f64, solo: f64) -> f64 {
    output.between(from, to) / (to - from) * solo
}

/// Returns the mean.
pub fn average(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// Returns the figure that this part of all, between 0 and 1, is not above; NaN if there are none.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Formats the length of a kernel.
pub fn name_of(length_us: f64) -> String {
    if length_us.is_infinite() {
        "endless".to_owned()
    } else if length_us < 1000.0 {
        format!("{length_us} us")
    } else {
        format!("{} ms", length_us / 1000.0)
    }
}

/// Formats the range of several figures, to follow their mean or median; empty for a single figure.
pub fn range(figures: &[f64], digits: usize) -> String {
    let (least, most) = (figures.iter().copied().fold(f64::MAX, f64::min), figures.iter().copied().fold(f64::MIN, f64::max));
    if figures.len() > 1 { format!(" [{least:.digits$}..{most:.digits$}]") } else { String::new() }
}

/// The state of a measurement.
pub struct Bench<'a> {
    /// The command line's options.
    pub options: &'a Options,
    /// A folder for the containers' files.
    pub folder: PathBuf,
    /// Rounds of the kernel per microsecond.
    pub rounds_per_us: f64,
}

impl Bench<'_> {
    /// Returns a job of kernels that take `length_us` µs alone.
    pub fn job(&self, length_us: f64, streams: usize, graph: u32) -> Job {
        let rounds = (length_us * self.rounds_per_us) as u32;
        Job { rounds, length_us, seconds: self.options.seconds + 1.2, streams, graph, ..Job::default() }
    }

    /// Returns a job of kernels that end much later than the measurement.
    pub fn endless(&self) -> Job {
        Job { rounds: u32::MAX, ..self.job(1e9, 1, 0) }
    }

    /// Creates a container with this limit.
    pub fn ours(&self, name: &str, percent: u32) -> std::io::Result<Side> {
        self.ours_with(&self.options.library, name, percent)
    }

    /// Creates a container with this limit for this build of the library.
    fn ours_with(&self, library: &Path, name: &str, percent: u32) -> std::io::Result<Side> {
        let folder = self.folder.join(name);
        run::container(&folder, percent, 0)?;
        Ok(Side::Ours(library.to_owned(), folder))
    }

    /// Returns the end of a measurement, in µs after the start.
    pub fn end(&self) -> f64 {
        (self.options.seconds + 1.0) * 1e6
    }

    /// Returns the time for which a tenant works after its first second, in µs.
    pub fn after_first(&self) -> f64 {
        (self.options.seconds + 0.2) * 1e6
    }

    /// Returns the time of a launch alone, in µs, and the output of the run.
    pub fn solo(&self, job: &Job) -> std::io::Result<(f64, Output)> {
        let output = Tenant::start(&Side::Native, "busy", job)?.finish()?;
        Ok(((self.end() - 1e6) / output.between(1e6, self.end()), output))
    }

    /// Returns a tenant's share after the first second.
    pub fn share(&self, output: &Output, solo: f64) -> f64 {
        share_between(output, 1e6, self.end(), solo)
    }

    /// Returns the standard deviation of the shares of 100 ms windows, after the first second.
    pub fn spread(&self, output: &Output, solo: f64) -> f64 {
        let mean = self.share(output, solo);
        let windows = output.windows(1e6, self.end(), 1e5);
        (windows.iter().map(|rate| (rate * solo - mean).powi(2)).sum::<f64>() / windows.len().max(1) as f64).sqrt()
    }

    /// Starts tenants that begin together, once all should have their contexts: after 1 s and 300 ms for each tenant. Returns them and the
    /// time when they begin.
    pub fn start_together(&self, tenants: &[(Side, &str, Job)]) -> std::io::Result<(Vec<Tenant>, Instant)> {
        let wait_ms = 1000 + 300 * tenants.len() as u64;
        let (start_ms, begin) = (in_millis(wait_ms.into()), Instant::now() + Duration::from_millis(wait_ms));
        let started: std::io::Result<_> = tenants
            .iter()
            .map(|(side, what, job)| Tenant::start(side, what, &Job { start_ms: start_ms + u128::from(job.delay_ms), ..job.clone() }))
            .collect();
        Ok((started?, begin))
    }

    /// Runs tenants that begin together.
    pub fn together(&self, tenants: &[(Side, &str, Job)]) -> std::io::Result<Vec<Output>> {
        self.start_together(tenants)?.0.into_iter().map(Tenant::finish).collect()
    }

    /// Creates a container for each of these limits, and starts an arbiter for them.
    pub fn limited(&self, limits: &[u32]) -> std::io::Result<(Arbiter, Vec<Side>)> {
        self.limited_with(&self.options.library, limits)
    }

    /// As [`Bench::limited`], with this build of the library.
    fn limited_with(&self, library: &Path, limits: &[u32]) -> std::io::Result<(Arbiter, Vec<Side>)> {
        let folder = self.folder.join("limited");
        // New files instead of changed ones: nothing remains of the containers before.
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let side = |(n, &limit)| self.ours_with(library, &format!("limited/{n}"), limit);
        let sides = limits.iter().enumerate().map(side).collect::<std::io::Result<_>>()?;
        Ok((Arbiter::start(&folder), sides))
    }

    /// Runs busy tenants with these limits and an arbiter. Returns their output and the arbiter's CPU time in percent of a core, after the
    /// first second.
    pub fn together_limited(&self, tenants: &[(u32, Job)]) -> std::io::Result<(Vec<Output>, f64)> {
        self.together_limited_with(&self.options.library, tenants)
    }

    /// As [`Bench::together_limited`], with this build of the library.
    pub fn together_limited_with(&self, library: &Path, tenants: &[(u32, Job)]) -> std::io::Result<(Vec<Output>, f64)> {
        let (arbiter, sides) = self.limited_with(library, &tenants.iter().map(|(limit, _)| *limit).collect::<Vec<_>>())?;
        let jobs = tenants.iter().map(|(_, job)| job.clone());
        let tenants: Vec<_> = sides.into_iter().zip(jobs).map(|(side, job)| (side, "busy", job)).collect();
        let (started, begin) = self.start_together(&tenants)?;
        std::thread::sleep((begin + Duration::from_secs(1)).saturating_duration_since(Instant::now()));
        let (from, before) = (Instant::now(), arbiter.cpu());
        std::thread::sleep(Duration::from_secs_f64(self.options.seconds));
        let cpu = (arbiter.cpu() - before) / from.elapsed().as_micros() as f64 * 100.0;
        let output = started.into_iter().map(Tenant::finish).collect::<std::io::Result<_>>()?;
        arbiter.stop();
        Ok((output, cpu))
    }

    /// Creates two containers in a folder that an arbiter watches, limited to these percentages.
    pub fn two(&self, first: u32, second: u32) -> std::io::Result<[Side; 2]> {
        Ok([self.ours("turns/a", first)?, self.ours("turns/b", second)?])
    }
}

#[cfg(test)]
mod tests {
    use super::{name_of, percentile};

    #[test]
    fn percentiles_are_figures_that_were_seen() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.9, 0.99, 1.0].map(|part| percentile(&sorted, part)), [50.0, 90.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn lengths_have_readable_names() {
        assert_eq!([20.0, 2_000.0, f64::INFINITY].map(name_of), ["20 us", "2 ms", "endless"]);
    }
}
