//! The command line.

use std::path::PathBuf;

/// The jobs of `shares`: name, length of a kernel in µs, streams, launches in a graph.
pub const JOBS: [(&str, f64, usize, u32); 8] = [
    ("5 us", 5.0, 1, 0),
    ("20 us", 20.0, 1, 0),
    ("200 us", 200.0, 1, 0),
    ("2 ms", 2_000.0, 1, 0),
    ("20 ms", 20_000.0, 1, 0),
    ("100 ms", 100_000.0, 1, 0),
    ("graph 20 x 100 us", 100.0, 1, 20),
    ("4 streams, 200 us", 200.0, 4, 0),
];

/// The options of a measurement.
pub struct Options {
    /// Path of the library.
    pub library: PathBuf,
    /// Paths of other libraries.
    pub peers: Vec<PathBuf>,
    /// Limits, in percent.
    pub limits: Vec<u32>,
    /// Duration of a run after its first second, in seconds.
    pub seconds: f64,
    /// Number of runs of each side.
    pub rounds: usize,
    /// Indices into [`JOBS`].
    pub jobs: Vec<usize>,
    /// The folder of the pipes of an MPS daemon.
    pub mps: Option<PathBuf>,
    /// The parts to run; empty: all.
    pub parts: Vec<String>,
}

impl Options {
    /// Parses the command line.
    ///
    /// # Errors
    /// A message about the wrong option.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
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
            let mut value = || words.next().ok_or(format!("{word}: expected a value"));
            match word.as_str() {
                "--library" => options.library = value()?.into(),
                "--peer" => options.peers.push(value()?.into()),
                "--limits" => options.limits = value()?.split(',').filter_map(|limit| limit.parse().ok()).collect(),
                "--mps" => options.mps = Some(value()?.into()),
                "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds: expected a number")?,
                "--rounds" => {
                    options.rounds = value()?.parse().ok().filter(|&rounds| rounds > 0).ok_or("--rounds: expected a positive integer")?
                }
                "--jobs" => options.jobs = value()?.split(',').filter_map(|job| job.parse().ok()).collect(),
                part if !part.starts_with('-') => options.parts.push(part.to_owned()),
                other => return Err(format!("{other}: unknown option")),
            }
        }
        if options.library.is_file() { Ok(options) } else { Err("--library: expected the path of libvgpu.so".to_owned()) }
    }
}
