//! What is tried.

use std::path::{Path, PathBuf};
use std::process::Command;

use vgpu_e2e::{Fill, MIB, Machine, Oversub, PROGRAMS, WAYS_TO_ALLOCATE, Way, escapes, loads};
use vgpu_test_harness::{Bundle, Host, Outcome};

use crate::report::{Report, Row};

/// The share that most containers get.
const LIMIT: u64 = 1024 * MIB;
/// A container's command that takes longer is ended, in seconds.
const PATIENCE: &str = "90";

/// A machine, and which programs it has.
#[derive(Debug)]
pub struct Trials<'a> {
    machine: &'a Machine,
    python: Option<Python>,
}

/// A Python with PyTorch.
#[derive(Debug)]
struct Python {
    program: PathBuf,
    /// Where it is really installed.
    home: PathBuf,
}

impl<'a> Trials<'a> {
    /// Looks for what there is to run.
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

    /// Runs a command in a container with a share of so many MiB, and sees from outside what it holds at most.
    fn run(&self, host: &Host, way: Way, bundle: Bundle, command: &[&str]) -> (Outcome, u64) {
        let watch = self.machine.watch();
        let bounded: Vec<&str> = ["/usr/bin/timeout", "-k", "5", PATIENCE].iter().chain(command).copied().collect();
        let outcome = way.run(host, bundle.args(&bounded));
        (outcome, watch.peak(0))
    }

    /// Runs a program that allocates until it is refused, and judges what it says.
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
            Some(Err(why)) => row.wrong.push(format!("answered {answer:?}: {why}")),
            None => row.wrong.push(format!("{}: {}", outcome.status, last_line(&outcome.stderr))),
        }
        if !row.wrong.is_empty() {
            report.note(&format!("What went wrong: {name}"), &format!("{}\n{}\n{}", outcome.stdout, outcome.stderr, outcome.log));
        }
        report.row(&row);
    }

    /// Programs of the driver API.
    pub fn driver_api(&self, report: &mut Report, host: &Host, way: Way) {
        let fill = format!("{PROGRAMS}/fill");
        for api in WAYS_TO_ALLOCATE {
            let command = [&fill, "--api", api, "--chunk", "16M", "--max", "4G"];
            self.fill(report, host, way, self.bundle(1024), api, &command);
        }
    }

    /// Programs of the CUDA runtime, where they could be built.
    pub fn runtime_api(&self, report: &mut Report, host: &Host, way: Way) {
        for kind in ["cudart-static", "cudart-shared"] {
            if self.machine.program(kind).get_program().to_str().is_some_and(|path| Path::new(path).exists()) {
                self.fill(report, host, way, self.bundle(1024), kind, &[&format!("{PROGRAMS}/{kind}")]);
            } else if self.machine.is_real() {
                report.row(&Row { program: kind.to_owned(), wrong: vec!["nvcc has not built it".to_owned()], ..Row::default() });
            }
        }
    }

    /// A program of PyTorch's, where that is installed.
    pub fn pytorch(&self, report: &mut Report, host: &Host, way: Way) {
        let Some(python) = &self.python else { return };
        let mut bundle = self.bundle(1024);
        if !["/usr", "/opt"].iter().any(|shown| python.home.starts_with(shown)) {
            bundle = bundle.bind(&python.home, &python.home.to_string_lossy(), &["ro"]);
        }
        let (program, script) = (python.program.to_string_lossy(), format!("{PROGRAMS}/torch_share.py"));
        self.fill(report, host, way, bundle, "PyTorch", &[&program, "-B", &script]);
    }

    /// A program that needs half as much again as its share, and may have the rest on the host.
    pub fn oversubscription(&self, report: &mut Report, host: &Host, way: Way) {
        // A simulated GPU's memory is this machine's.
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
            Err(why) => row.wrong.push(format!("{why}, {}: {}", outcome.status, last_line(&outcome.stderr))),
        }
        report.row(&row);
    }

    /// What `nvidia-smi` shows.
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

    /// Programs that reach the driver in all the ways there are, with one kind of interception.
    pub fn interception(&self, report: &mut Report, host: &Host, way: Way, intercept: &str) {
        for load in loads().iter().filter(|load| load.is_held_by(intercept)) {
            let command: Vec<&str> = load.command.split(' ').collect();
            self.fill(report, host, way, self.bundle(1024), load.name, &command);
        }
        self.runtime_api(report, host, way);
        self.pytorch(report, host, way);
        self.nvidia_smi(report, host, way);
    }

    /// What `vgpu check` says of this machine. Nothing is installed here, so it is only shown what it says.
    pub fn check(&self, report: &mut Report) {
        let Ok(output) = self.machine.check() else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let wrong = if text.contains("GPU-") { Vec::new() } else { vec![format!("shows no GPU: {}", last_line(&text))] };
        report.note("vgpu check", &text);
        report.row(&Row { program: "vgpu check".to_owned(), wrong, ..Row::default() });
    }

    /// What a tenant may try to get rid of its limit.
    pub fn escapes(&self, report: &mut Report, host: &Host, way: Way) {
        for (name, script) in escapes() {
            self.fill(report, host, way, self.bundle(1024), name, &["/bin/sh", "-c", &script]);
        }
        let bundle = self.bundle(1024).user(65534);
        self.fill(report, host, way, bundle, "another user", &[&format!("{PROGRAMS}/fill"), "--chunk", "16M", "--max", "4G"]);
    }

    /// Processes that race, and half of them killed.
    pub fn storm(&self, report: &mut Report, host: &Host, way: Way) {
        let context = self.machine.context();
        // On a real one 32 contexts take seconds, one after the other: what is measured begins when all are there.
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
            row.wrong.push(format!("NVML showed more than {} MiB", limit / MIB));
        }
        report.row(&row);
    }
}

/// Whether what a program says is what it should be with a share of [`LIMIT`].
fn judge(row: &mut Row, fill: &Fill, answer: &str, peak: u64) {
    (row.total, row.obtained, row.refusal) = (Some(fill.total), Some(fill.obtained), fill.error.clone());
    let wrong = [
        (fill.total != LIMIT, "sees another total than 1024 MiB"),
        (fill.nvml_total.is_some_and(|total| total != LIMIT), "NVML inside shows another total than 1024 MiB"),
        (fill.obtained > LIMIT, "obtained more than its share"),
        (fill.obtained < 128 * MIB, "obtained hardly anything"),
        (!is_out_of_memory(&fill.error), "was not refused as out of memory"),
        (answer.contains("\"works\":false"), "computed something wrong"),
        (peak > LIMIT, "the host's NVML showed more than its share"),
        (peak == 0, "the host's NVML showed nothing"),
    ];
    row.wrong.extend(wrong.iter().filter(|(is, _)| *is).map(|(_, what)| (*what).to_owned()));
}

fn is_out_of_memory(error: &str) -> bool {
    ["CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "OutOfMemoryError"].contains(&error)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}
