//! What is written down.

use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

use vgpu_e2e::{MIB, Machine, Way};
use vgpu_test_harness::Runtime;

/// One line of the table.
#[derive(Debug, Default)]
pub struct Row {
    /// What was run.
    pub program: String,
    /// Bytes in all, as the program sees it.
    pub total: Option<u64>,
    /// Bytes that it obtained.
    pub obtained: Option<u64>,
    /// What it was refused with.
    pub refusal: String,
    /// The most bytes that the host's NVML showed meanwhile.
    pub peak: Option<u64>,
    /// What was not as it should be.
    pub wrong: Vec<String>,
}

/// The report.
#[derive(Debug)]
pub struct Report {
    head: String,
    table: String,
    notes: String,
    setting: String,
    rows: usize,
    failed: usize,
    begun: Instant,
}

impl Report {
    /// With what is to be known of the machine.
    pub fn new(machine: &Machine) -> Self {
        let said = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().ok()?;
            String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
        };
        let driver = ["--query-gpu=driver_version", "--format=csv,noheader"];
        let facts = [
            ("GPU", Some(machine.held(0).name)),
            ("Driver", if machine.is_real() { said("nvidia-smi", &driver) } else { None }),
            ("Kernel", said("uname", &["-r"])),
            ("glibc", said("ldd", &["--version"])),
            ("Runtimes", said("runc", &["--version"]).zip(said("crun", &["--version"])).map(|(runc, crun)| format!("{runc}, {crun}"))),
            ("Date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ];
        let mut head = String::from("# End to end on a GPU\n\n");
        for (name, fact) in facts {
            let _ = writeln!(head, "- {name}: {}", fact.unwrap_or_else(|| "not known".to_owned()));
        }
        let none = String::new();
        Self { head, table: none.clone(), notes: none.clone(), setting: none, rows: 0, failed: 0, begun: Instant::now() }
    }

    /// What the following rows were run with, and how calls were intercepted if that is not as usual.
    pub fn setting(&mut self, runtime: Runtime, way: Way, intercept: Option<&str>) {
        let intercept = intercept.map(|intercept| format!(", {intercept}")).unwrap_or_default();
        self.setting = format!("{}, {}{intercept}", runtime.name(), way.name());
    }

    /// Takes a row.
    pub fn row(&mut self, row: &Row) {
        let mib = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.1}", bytes as f64 / MIB as f64));
        let verdict = if row.wrong.is_empty() { "ok".to_owned() } else { format!("**{}**", row.wrong.join("; ")) };
        let line = format!(
            "| {} | {} | {} | {} | {} | {} | {verdict} |\n",
            self.setting,
            row.program,
            mib(row.total),
            mib(row.obtained),
            row.refusal,
            mib(row.peak)
        );
        eprint!("{:4.0} s {line}", self.begun.elapsed().as_secs_f64());
        self.table.push_str(&line);
        self.rows += 1;
        self.failed += usize::from(!row.wrong.is_empty());
    }

    /// Takes a program's output as it was.
    pub fn note(&mut self, title: &str, text: &str) {
        let _ = write!(self.notes, "\n## {title} ({})\n\n```\n{}\n```\n", self.setting, text.trim_end());
    }

    /// How many rows were not as they should be; one if there is none at all.
    pub fn failed(&self) -> usize {
        if self.rows == 0 { 1 } else { self.failed }
    }

    /// All of it.
    pub fn text(&self) -> String {
        let columns = "| Runtime, way | Program | Sees in all, MiB | Obtains, MiB | Refused with | Host's NVML at most, MiB | |";
        let summary = format!("{} of {} as they should be", self.rows - self.failed.min(self.rows), self.rows);
        format!("{}- Result: {summary}\n\n{columns}\n|---|---|---|---|---|---|---|\n{}{}", self.head, self.table, self.notes)
    }
}
