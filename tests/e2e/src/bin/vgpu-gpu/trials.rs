//! The trials.

use std::path::{Path, PathBuf};
use std::process::Command;

use vgpu_e2e::{ALLOCATION_METHODS, Fill, MIB, Machine, Oversub, PROGRAMS, Way, escapes, loads};
use vgpu_test_harness::{Bundle, Host, Outcome};

use crate::report::{Report, Row};

/// The limit of most containers.
const LIMIT: u64 = 1024 * MIB;
/// Seconds after which a container's command is ended.
const TIMEOUT_S: &str = "90";

/// The limit of the frameworks, in MiB.
const FRAMEWORK_MIB: u64 = 4096;

/// A machine and the programs it has.
#[derive(Debug)]
pub struct Trials<'a> {
    machine: &'a Machine,
    python: Option<Python>,
}

/// A Python with PyTorch.
#[derive(Debug)]
struct Python {
    program: PathBuf,
    /// Its installation folder.
    home: PathBuf,
}

impl Python {
    /// Shows its installation folder in a container, which shows `/usr` and `/opt` already.
    fn shown(&self, bundle: Bundle) -> Bundle {
        if ["/usr", "/opt"].iter().any(|shown| self.home.starts_with(shown)) {
            return bundle;
        }
        bundle.bind(&self.home, &self.home.to_string_lossy(), &["ro"])
    }
}

/// What `tests/gpu/frameworks.py` prints, of what is checked here.
#[derive(Debug, serde::Deserialize)]
struct Framework {
    /// Total bytes, if the framework tells.
    total: Option<u64>,
    /// Bytes that it obtained.
    obtained: u64,
    /// The error that refused more, or `no`.
    refused: String,
}

impl<'a> Trials<'a> {
    /// Looks for the programs that can run.
    pub fn new(machine: &'a Machine) -> Self {
        let known = ["/opt/torch/.venv/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3"];
        let home = |program: &str| {
            let script = "import sys, importlib.util as u; assert u.find_spec('torch'); print(sys.base_prefix)";
            let output = Command::new(program).args(["-c", script]).output().ok().filter(|output| output.status.success())?;
            let home = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            Some(Python { program: program.into(), home })
        };
        let python = if machine.is_real() { known.iter().find_map(|program| home(program)) } else { None };
        Self { machine, python }
    }

    fn bundle(&self, mib: u64) -> Bundle {
        self.machine.bundle().annotation("nvidia.com/gpumem", &mib.to_string())
    }

    /// Runs a command in a container with a share of `mib` MiB. Returns the outcome and the peak of its memory, seen from outside.
    fn run(&self, host: &Host, way: Way, bundle: Bundle, command: &[&str]) -> (Outcome, u64) {
        let watch = self.machine.watch();
        let bounded: Vec<&str> = ["/usr/bin/timeout", "-k", "5", TIMEOUT_S].iter().chain(command).copied().collect();
        let outcome = way.run(host, bundle.args(&bounded));
        (outcome, watch.peak(0))
    }

    /// Runs a program that allocates until it is refused, and checks its output.
    fn fill(&self, report: &mut Report, host: &Host, way: Way, bundle: Bundle, name: &str, command: &[&str]) {
        let (outcome, peak) = self.run(host, way, bundle, command);
        let mut row = Row { program: name.to_owned(), peak: Some(peak), ..Row::default() };
        let answer = outcome.stdout.lines().find(|line| line.starts_with('{'));
        match answer.map(serde_json::from_str::<Fill>) {
            Some(Ok(fill)) => {
                judge(&mut row, &fill, answer.unwrap_or_default(), peak);
                if fill.message.is_some() {
                    report.note(name, answer.unwrap_or_default());
                }
            }
            Some(Err(error)) => row.wrong.push(format!("output {answer:?}: {error}")),
            None => row.wrong.push(format!("{}: {}", outcome.status, last_line(&outcome.stderr))),
        }
        if !row.wrong.is_empty() {
            report.note(&format!("Failed: {name}"), &format!("{}\n{}\n{}", outcome.stdout, outcome.stderr, outcome.log));
        }
        report.row(&row);
    }

    /// Runs programs of the driver API.
    pub fn driver_api(&self, report: &mut Report, host: &Host, way: Way) {
        let fill = format!("{PROGRAMS}/fill");
        for api in ALLOCATION_METHODS {
            let command = [&fill, "--api", api, "--chunk", "16M", "--max", "4G"];
            self.fill(report, host, way, self.bundle(1024), api, &command);
        }
    }

    /// Runs programs of the CUDA runtime, where they could be built.
    pub fn runtime_api(&self, report: &mut Report, host: &Host, way: Way) {
        for kind in ["cudart-static", "cudart-shared"] {
            if self.machine.program(kind).get_program().to_str().is_some_and(|path| Path::new(path).exists()) {
                self.fill(report, host, way, self.bundle(1024), kind, &[&format!("{PROGRAMS}/{kind}")]);
            } else if self.machine.is_real() {
                report.row(&Row { program: kind.to_owned(), wrong: vec!["not built by nvcc".to_owned()], ..Row::default() });
            }
        }
    }

    /// Runs a PyTorch program, where PyTorch is installed.
    pub fn pytorch(&self, report: &mut Report, host: &Host, way: Way) {
        let Some(python) = &self.python else { return };
        let (program, script) = (python.program.to_string_lossy(), format!("{PROGRAMS}/torch_share.py"));
        self.fill(report, host, way, python.shown(self.bundle(1024)), "PyTorch", &[&program, "-B", &script]);
    }

    /// Runs the frameworks that are installed with PyTorch, which compute and then allocate until they are refused.
    pub fn frameworks(&self, report: &mut Report, host: &Host, way: Way) {
        let Some(python) = &self.python else { return };
        let (program, script) = (python.program.to_string_lossy(), format!("{PROGRAMS}/frameworks.py"));
        for name in ["JAX", "CuPy", "Numba", "Triton", "cuda.bindings"] {
            let bundle = python.shown(self.bundle(FRAMEWORK_MIB));
            let (outcome, peak) = self.run(host, way, bundle, &["/usr/bin/env", "HOME=/tmp", &program, "-B", &script, name]);
            let answer = outcome.stdout.lines().find(|line| line.starts_with('{')).unwrap_or_default();
            let mut row = Row { program: name.to_owned(), peak: Some(peak), ..Row::default() };
            match serde_json::from_str::<Framework>(answer) {
                Ok(answer) => {
                    (row.total, row.obtained, row.refusal) = (answer.total, Some(answer.obtained), answer.refused);
                    let is_held = row.refusal != "no" && answer.obtained <= FRAMEWORK_MIB * MIB && peak <= FRAMEWORK_MIB * MIB;
                    if !is_held || answer.total.is_some_and(|total| total != FRAMEWORK_MIB * MIB) || answer.obtained < 128 * MIB {
                        row.wrong.push(format!("expected to be refused at {FRAMEWORK_MIB} MiB"));
                    }
                }
                Err(error) => row.wrong.push(format!("{error}, {}: {}", outcome.status, last_line(&outcome.stderr))),
            }
            if !row.wrong.is_empty() {
                report.note(&format!("Failed: {name}"), &format!("{}\n{}\n{}", outcome.stdout, outcome.stderr, outcome.log));
            }
            report.row(&row);
        }
    }

    /// Runs a program that needs 1.5 times its share and may spill the rest to the host.
    pub fn oversubscription(&self, report: &mut Report, host: &Host, way: Way) {
        // The memory of a simulated GPU is memory of this machine.
        let (mib, need, chunk) = if self.machine.is_real() { (2048, 3072, "64M") } else { (768, 896, "16M") };
        let bundle = self.bundle(mib).annotation("nvidia.com/gpumem-oversubscribe", "true");
        let command = [&format!("{PROGRAMS}/oversub"), "--need", &format!("{need}M"), "--chunk", chunk];
        let (outcome, peak) = self.run(host, way, bundle, &command);
        let mut row = Row { program: "oversubscription".to_owned(), peak: Some(peak), ..Row::default() };
        match Oversub::of(&outcome.stdout) {
            Ok(answer) => {
                (row.total, row.obtained, row.refusal) = (Some(answer.total), Some(answer.most), answer.refused.clone());
                let good = answer.wrong == 0 && answer.obtained == need * MIB && answer.elsewhere > 0;
                let bounded = answer.total == 2 * mib * MIB && answer.most <= answer.total && peak <= mib * MIB;
                if !good || !bounded || answer.refused != "CUDA_ERROR_OUT_OF_MEMORY" {
                    row.wrong.push(format!("{answer:?}"));
                }
            }
            Err(error) => row.wrong.push(format!("{error}, {}: {}", outcome.status, last_line(&outcome.stderr))),
        }
        report.row(&row);
    }

    /// Runs `nvidia-smi`.
    pub fn nvidia_smi(&self, report: &mut Report, host: &Host, way: Way) {
        if !self.machine.is_real() {
            return;
        }
        let inside = "PATH=$PATH:/usr/local/nvidia/bin; \
                      nvidia-smi --query-gpu=memory.total,memory.used,memory.free --format=csv,noheader,nounits && nvidia-smi";
        let (outcome, peak) = self.run(host, way, self.bundle(1024), &["/bin/sh", "-c", inside]);
        let figures: Vec<u64> = outcome.stdout.lines().next().unwrap_or_default().split(", ").filter_map(|n| n.parse().ok()).collect();
        let mut row = Row { program: "nvidia-smi".to_owned(), peak: Some(peak), ..Row::default() };
        row.total = figures.first().map(|mib| mib * MIB);
        match figures[..] {
            [1024, used, free] if used + free <= 1024 => {}
            _ => row.wrong.push(format!("shows {figures:?}, {}: {}", outcome.status, last_line(&outcome.stderr))),
        }
        report.row(&row);
        report.note("nvidia-smi", &outcome.stdout);
    }

    /// Runs programs that reach the driver in every way, with one kind of interception.
    pub fn interception(&self, report: &mut Report, host: &Host, way: Way, intercept: &str) {
        for load in loads().iter().filter(|load| load.is_limited_with(intercept)) {
            let command: Vec<&str> = load.command.split(' ').collect();
            self.fill(report, host, way, self.bundle(1024), load.name, &command);
        }
        self.runtime_api(report, host, way);
        self.pytorch(report, host, way);
        if intercept == "both" {
            self.frameworks(report, host, way);
        }
        self.nvidia_smi(report, host, way);
    }

    /// Runs `vgpu check`. Nothing is installed on this machine, so only its output is recorded.
    pub fn check(&self, report: &mut Report) {
        let Ok(output) = self.machine.check() else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let wrong = if text.contains("GPU-") { Vec::new() } else { vec![format!("lists no GPU: {}", last_line(&text))] };
        report.note("vgpu check", &text);
        report.row(&Row { program: "vgpu check".to_owned(), wrong, ..Row::default() });
    }

    /// Runs the attempts of a tenant to escape its limit.
    pub fn escapes(&self, report: &mut Report, host: &Host, way: Way) {
        for (name, script) in escapes() {
            self.fill(report, host, way, self.bundle(1024), name, &["/bin/sh", "-c", &script]);
        }
        let bundle = self.bundle(1024).user(65534);
        self.fill(report, host, way, bundle, "another user", &[&format!("{PROGRAMS}/fill"), "--chunk", "16M", "--max", "4G"]);
    }

    /// Runs racing processes, half of which are killed.
    pub fn storm(&self, report: &mut Report, host: &Host, way: Way) {
        let context = self.machine.context();
        // On a real GPU 32 contexts take seconds, one after the other: the measurement begins when all exist.
        let (processes, rounds, spread, more) =
            if self.machine.is_real() { (32, 3, 500, "--slack 64M --settled") } else { (8, 3, 200, "--slack 2M") };
        let limit = (processes + 8) * context.next_multiple_of(MIB);
        let command = format!(
            "{PROGRAMS}/storm --processes {processes} --rounds {rounds} --spread {spread} {more} --limit {limit} \
             --context {context} --seed 1"
        );
        let (outcome, peak) = self.run(host, way, self.bundle(limit / MIB), &["/bin/sh", "-c", &command]);
        let mut row = Row { program: format!("storm, {processes} processes, {} MiB", limit / MIB), peak: Some(peak), ..Row::default() };
        row.refusal = outcome.stdout.trim().to_owned();
        if !outcome.status.success() {
            row.wrong.push(format!("{}: {}", outcome.status, last_line(&outcome.stderr)));
        }
        if peak > limit {
            row.wrong.push(format!("NVML listed more than {} MiB", limit / MIB));
        }
        report.row(&row);
    }
}

/// Checks a program's output against a share of [`LIMIT`].
fn judge(row: &mut Row, fill: &Fill, answer: &str, peak: u64) {
    (row.total, row.obtained, row.refusal) = (Some(fill.total), Some(fill.obtained), fill.error.clone());
    let wrong = [
        (fill.total != LIMIT, "total by CUDA is not 1024 MiB"),
        (fill.nvml_total.is_some_and(|total| total != LIMIT), "total by NVML in the container is not 1024 MiB"),
        (fill.obtained > LIMIT, "obtained more than its share"),
        (fill.obtained < 128 * MIB, "obtained less than 128 MiB"),
        (!is_out_of_memory(&fill.error), "ended by another error than out of memory"),
        (answer.contains("\"works\":false"), "computed a wrong result"),
        (peak > LIMIT, "the host's NVML listed more than its share"),
        (peak == 0, "the host's NVML listed nothing"),
    ];
    row.wrong.extend(wrong.iter().filter(|(is, _)| *is).map(|(_, what)| (*what).to_owned()));
}

fn is_out_of_memory(error: &str) -> bool {
    ["CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "OutOfMemoryError"].contains(&error)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
