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

/// The limits of a part, in percent, unless `--limits` names others.
pub const LIMITS: [u32; 3] = [25, 50, 75];

/// The options of a measurement.
pub struct Options {
    /// Path of the library.
    pub library: PathBuf,
    /// Paths of other builds of the library.
    pub builds: Vec<PathBuf>,
    /// Paths of other libraries.
    pub peers: Vec<PathBuf>,
    /// Limits, in percent; empty: those of each part.
    limits: Vec<u32>,
    /// Duration of a run after its first second, in seconds.
    pub seconds: f64,
    /// Number of runs of each side.
    pub rounds: usize,
    /// Indices into [`JOBS`].
    pub jobs: Vec<usize>,
    /// Lengths of the busy tenants' kernels in `interactive` and `busy-pairs`, in µs; infinite: endless; empty: all.
    kernels: Vec<f64>,
    /// Kinds of requests in `interactive`; empty: all.
    pub kinds: Vec<usize>,
    /// Numbers of tenants in `many`.
    pub tenants: Vec<u32>,
    /// Rest of the tenants in `many` between 20 kernels and their start, in seconds; 0: neither.
    pub rest: f64,
    /// Whether `interactive`, `busy-pairs` and `many` leave out what is only for comparison: the same tenants beside each other natively.
    pub only_ours: bool,
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
            builds: vec![],
            peers: vec![],
            limits: vec![],
            seconds: 5.0,
            rounds: 1,
            jobs: (0..JOBS.len()).collect(),
            kernels: vec![],
            kinds: vec![],
            tenants: vec![16],
            rest: 0.0,
            only_ours: false,
            mps: None,
            parts: vec![],
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word}: expected a value"));
            match word.as_str() {
                "--library" => options.library = value()?.into(),
                "--build" => options.builds.push(value()?.into()),
                "--only-ours" => options.only_ours = true,
                "--peer" => options.peers.push(value()?.into()),
                "--limits" => options.limits = value()?.split(',').filter_map(|limit| limit.parse().ok()).collect(),
                "--mps" => options.mps = Some(value()?.into()),
                "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds: expected a number")?,
                "--rounds" => {
                    options.rounds = value()?.parse().ok().filter(|&rounds| rounds > 0).ok_or("--rounds: expected a positive integer")?
                }
                "--jobs" => options.jobs = value()?.split(',').filter_map(|job| job.parse().ok()).collect(),
                "--kernels" => {
                    options.kernels = list(&value()?.replace("endless", "inf")).ok_or("--kernels: expected lengths in us, or endless")?
                }
                "--kinds" => options.kinds = list(value()?).ok_or("--kinds: expected numbers of kinds, from 0")?,
                "--tenants" => {
                    let tenants = list(value()?).filter(|tenants: &Vec<u32>| tenants.iter().all(|count| (1..=100).contains(count)));
                    options.tenants = tenants.ok_or("--tenants: expected numbers from 1 to 100")?;
                }
                "--rest" => {
                    options.rest =
                        value()?.parse().ok().filter(|rest| *rest >= 0.0).ok_or("--rest: expected a number of seconds, at least 0")?
                }
                part if !part.starts_with('-') => options.parts.push(part.to_owned()),
                other => return Err(format!("{other}: unknown option")),
            }
        }
        if options.library.is_file() { Ok(options) } else { Err("--library: expected the path of libvgpu.so".to_owned()) }
    }

    /// Returns the limits that the command line names, or else these.
    pub fn limits<'a>(&'a self, own: &'a [u32]) -> &'a [u32] {
        if self.limits.is_empty() { own } else { &self.limits }
    }

    /// Returns whether kernels of this length are to be measured.
    pub fn wants_kernel(&self, length_us: f64) -> bool {
        self.kernels.is_empty() || self.kernels.contains(&length_us)
    }
}

/// Parses a list with commas; `None` if an item is wrong.
fn list<T: std::str::FromStr>(words: &str) -> Option<Vec<T>> {
    words.split(',').map(|word| word.parse().ok()).collect()
}
