//! A measurement: jobs, sides and shares.

use std::path::PathBuf;

use crate::options::Options;
use crate::run::{self, Output, Side, Tenant};
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

    /// Creates a container with this limit.
    pub fn ours(&self, name: &str, percent: u32) -> std::io::Result<Side> {
        let folder = self.folder.join(name);
        run::container(&folder, percent, 0)?;
        Ok(Side::Ours(self.options.library.clone(), folder))
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

    /// Runs tenants that start together, once all should have their contexts: after 1 s and 200 ms for each tenant.
    pub fn together(&self, tenants: &[(Side, &str, Job)]) -> std::io::Result<Vec<Output>> {
        let start_ms = in_millis(1000 + 200 * tenants.len() as u128);
        let started: Vec<_> = tenants
            .iter()
            .map(|(side, what, job)| Tenant::start(side, what, &Job { start_ms: start_ms + u128::from(job.delay_ms), ..job.clone() }))
            .collect::<std::io::Result<_>>()?;
        started.into_iter().map(Tenant::finish).collect()
    }

    /// Creates two containers in a folder that an arbiter watches, limited to these percentages.
    pub fn two(&self, first: u32, second: u32) -> std::io::Result<[Side; 2]> {
        Ok([self.ours("turns/a", first)?, self.ours("turns/b", second)?])
    }
}
