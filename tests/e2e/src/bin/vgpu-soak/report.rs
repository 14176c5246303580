//! The report, in Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;
use vgpu_e2e::process::Usage;
use vgpu_test_harness::Runtime;

use crate::checkpoint::{Begin, Log};
use crate::fleet::Fleet;
use crate::parts;

/// Arguments of the run.
pub struct About {
    /// Its length in seconds.
    pub seconds: u64,
    /// Number of containers.
    pub wanted: u64,
    /// Seed of the random operations.
    pub seed: u64,
    /// Runtimes.
    pub runtimes: Vec<Runtime>,
}

/// What the end has shown.
pub struct Outcome {
    /// Accounts compared, and those with processes.
    pub compared: [usize; 2],
    /// Containers that were filled.
    pub filled: usize,
    /// What the monitor's processes used when all containers were deleted.
    pub last: BTreeMap<String, Usage>,
}

/// Minutes between rows of the table.
const ROWS: u64 = 10;

/// Returns the report, without its title.
pub fn report(about: &About, fleet: &Fleet, log: &Log, begin: &Begin, outcome: &Outcome) -> String {
    let mut text = String::new();
    let runtimes: Vec<_> = about.runtimes.iter().map(|runtime| runtime.name()).collect();
    let _ = writeln!(
        text,
        "{} s, {} containers with {}, seed {}. Containers are real, the GPU is simulated.\n",
        about.seconds,
        about.wanted,
        runtimes.join(" and "),
        about.seed
    );
    verdict(&mut text, log);
    operations(&mut text, fleet, log);
    checkpoints(&mut text, log);
    growths(&mut text, log);
    let _ = writeln!(text, "## Without containers\n\n| process | private, KiB, at the begin / at the end | descriptors |\n|---|---|---|");
    for (role, before) in &begin.parts {
        let after = outcome.last.get(role).copied().unwrap_or_default();
        let (memory, descriptors) = ([before.private >> 10, after.private >> 10], [before.descriptors, after.descriptors]);
        let _ = writeln!(text, "| {role} | {} / {} | {} / {} |", memory[0], memory[1], descriptors[0], descriptors[1]);
    }
    let _ = writeln!(
        text,
        "\nAt the end {} accounts were compared ({} with processes on the GPU), and in {} containers a program took all memory that was left.\n\
         In all checkpoints {} accounts were compared ({} with processes).",
        outcome.compared[0], outcome.compared[1], outcome.filled, log.compared[0], log.compared[1]
    );
    text
}

fn verdict(text: &mut String, log: &Log) {
    if log.findings.is_empty() {
        let _ = writeln!(text, "**Nothing was found.**\n");
        return;
    }
    let _ = writeln!(text, "**{} findings:**\n", log.findings.len());
    log.findings.iter().for_each(|finding| _ = writeln!(text, "* {finding}"));
    let _ = writeln!(text);
}

fn operations(text: &mut String, fleet: &Fleet, log: &Log) {
    let _ = writeln!(text, "| operation | done | of it failed, as the container had ended |\n|---|---|---|");
    for (operation, (done, failed)) in &fleet.counts {
        let _ = writeln!(text, "| {operation} | {done} | {failed} |");
    }
    for (role, kills) in &log.kills {
        let _ = writeln!(text, "| SIGKILL of the monitor's {role} | {kills} | |");
    }
    let _ = writeln!(text);
}

/// Returns what all processes of a role use in a checkpoint: the largest private memory in KiB, and the most descriptors.
fn of_role(checkpoint: &Value, role: &str) -> [u64; 2] {
    let parts = checkpoint["parts"].as_array().into_iter().flatten().filter(|part| part["role"] == role);
    let number = |part: &Value, name: &str| part[name].as_u64().unwrap_or(0);
    parts.fold([0; 2], |most, part| [most[0].max(number(part, "private") >> 10), most[1].max(number(part, "descriptors"))])
}

fn checkpoints(text: &mut String, log: &Log) {
    let _ = write!(
        text,
        "## Checkpoints\n\nPrivate memory in KiB / descriptors of the monitor's processes (of writers, the most).\n\n| minute | "
    );
    let figures = [
        "containers",
        "state_tmpfs",
        "state_mounts",
        "state_files",
        "state_bytes",
        "leftovers",
        "cgroups",
        "monitor_zombies",
        "gpu_processes",
        "gpu_used",
    ];
    let roles: Vec<&str> = std::iter::once(parts::SUPERVISOR).chain(parts::PARTS).collect();
    let names = figures.iter().chain(&roles).map(|name| name.replace('_', " "));
    let _ = writeln!(text, "{} |\n|{}", names.collect::<Vec<_>>().join(" | "), "---|".repeat(figures.len() + roles.len() + 1));
    let is_row = |minute: u64| minute == 1 || minute.is_multiple_of(ROWS);
    for checkpoint in log.checkpoints.iter().filter(|checkpoint| checkpoint["minute"].as_u64().is_none_or(is_row)) {
        let minute = checkpoint["minute"].as_u64();
        let values = figures.iter().map(|name| checkpoint[*name].to_string());
        let used = roles.iter().map(|role| of_role(checkpoint, role)).map(|[memory, descriptors]| format!("{memory} / {descriptors}"));
        let cells: Vec<String> = values.chain(used).collect();
        let _ = writeln!(text, "| {} | {} |", minute.map_or("end".to_owned(), |minute| minute.to_string()), cells.join(" | "));
    }
    let _ = writeln!(text);
}

fn growths(text: &mut String, log: &Log) {
    let _ = writeln!(
        text,
        "## Long lifetimes\n\nProcesses of the monitor that lived for at least {} s: medians of three samples, from 170 s after the start on and at the end.\n\n\
         | process | over, s | private, KiB | descriptors |\n|---|---|---|---|",
        parts::LONG.as_secs()
    );
    for growth in log.lives.growths() {
        let ([first, last], [before, after]) = (growth.private, growth.descriptors);
        let _ = writeln!(text, "| {} | {} | {} / {} | {before} / {after} |", growth.role, growth.over.as_secs(), first >> 10, last >> 10);
    }
    let _ = writeln!(text);
}
