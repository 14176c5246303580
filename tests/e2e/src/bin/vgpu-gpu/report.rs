//! The report.

use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

use vgpu_e2e::{MIB, Machine, Way};
use vgpu_test_harness::Runtime;

/// One line of the table.
#[derive(Debug, Default)]
pub struct Row {
    /// The program.
    pub program: String,
    /// Total bytes, as the program sees them.
    pub total: Option<u64>,
    /// Bytes that it obtained.
    pub obtained: Option<u64>,
    /// The error that ended it.
    pub refusal: String,
    /// The most bytes that the host's NVML listed meanwhile.
    pub peak: Option<u64>,
    /// Failed checks.
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
    /// Starts a report with the facts about the machine.
    pub fn new(machine: &Machine) -> Self {
        let first_line = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().ok()?;
            String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
        };
        let driver = ["--query-gpu=driver_version", "--format=csv,noheader"];
        let facts = [
            ("GPU", Some(machine.held(0).name)),
            ("Driver", if machine.is_real() { first_line("nvidia-smi", &driver) } else { None }),
            ("Kernel", first_line("uname", &["-r"])),
            ("glibc", first_line("ldd", &["--version"])),
            (
                "Runtimes",
                first_line("runc", &["--version"]).zip(first_line("crun", &["--version"])).map(|(runc, crun)| format!("{runc}, {crun}")),
            ),
            ("Date", first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ];
        let mut head = String::from("# End to end on a GPU\n\n");
        for (name, fact) in facts {
            let _ = writeln!(head, "- {name}: {}", fact.unwrap_or_else(|| "not known".to_owned()));
        }
        let none = String::new();
        Self { head, table: none.clone(), notes: none.clone(), setting: none, rows: 0, failed: 0, begun: Instant::now() }
    }

    /// Sets the runtime, the way and, if it is not the default, the interception of the following rows.
    pub fn setting(&mut self, runtime: Runtime, way: Way, intercept: Option<&str>) {
        let intercept = intercept.map(|intercept| format!(", {intercept}")).unwrap_or_default();
        self.setting = format!("{}, {}{intercept}", runtime.name(), way.name());
    }

    /// Adds a row.
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

    /// Adds the output of a program.
    pub fn note(&mut self, title: &str, text: &str) {
        let _ = write!(self.notes, "\n## {title} ({})\n\n```\n{}\n```\n", self.setting, text.trim_end());
    }

    /// Returns the number of rows with failed checks; 1 if there are no rows.
    pub fn failed(&self) -> usize {
        if self.rows == 0 { 1 } else { self.failed }
    }

    /// Returns the whole report.
    pub fn text(&self) -> String {
        let columns = "| Runtime, way | Program | Total seen, MiB | Obtained, MiB | Error | Host's NVML peak, MiB | |";
        let summary = format!("{} of {} passed", self.rows - self.failed.min(self.rows), self.rows);
        format!("{}- Result: {summary}\n\n{columns}\n|---|---|---|---|---|---|---|\n{}{}", self.head, self.table, self.notes)
    }
}
