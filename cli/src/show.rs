//! `vgpu show`: prints the containers, their limits and their usage once.

use crate::config_args::ConfigArgs;
use crate::human::{bytes, duration};
use crate::origins::Origins;
use crate::outcome::Outcome;
use std::cmp::Reverse;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use vgpu_monitor::container;
use vgpu_monitor::observer::Observer;
use vgpu_monitor::selection::{self, NotFound};
use vgpu_monitor::snapshot::{ContainerState, Gpu, Share, Snapshot, Unlimited};
use vgpu_oci_hook::process::rootless_user;

/// List containers with their limits and usage
///
/// Without CONTAINER, the processes on each GPU that belong to no container with limits follow below the containers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only this container: its id or a prefix of it, or any of its names
    container: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Time between the two samples that utilization is computed from.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let state_dir = self.config.listed_state_dir()?;
        let mut observer = Observer::new(&state_dir);
        let snapshot = match &self.container {
            Some(name) => sample_named(&mut observer, &state_dir, name)?,
            None => sample(&mut observer, |_| true),
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&snapshot)?);
        } else {
            print!("{}", table(&snapshot));
            if self.container.is_none() {
                print!("{}", unlimited_table(&snapshot, &mut Origins::of_host(), rootless_user().is_none()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a snapshot of the one container that `name` selects.
fn sample_named(observer: &mut Observer, state_dir: &Path, name: &str) -> Result<Snapshot, NotFound> {
    let containers = container::list(state_dir, &mut Default::default());
    let found = selection::find(&containers, name).map(|found| found.dir.as_path());
    let mut snapshot = sample(observer, |dir| found == Ok(dir));
    // A container whose record cannot be read has no other name than its directory's.
    let is_damaged = |container: &ContainerState| container.damaged.is_some() && container.dir_name == *name;
    match found {
        Ok(dir) => snapshot.containers.retain(|container| dir.ends_with(&container.dir_name)),
        Err(_) if snapshot.containers.iter().any(is_damaged) => snapshot.containers.retain(is_damaged),
        Err(error) => return Err(error),
    }
    Ok(snapshot)
}

/// Returns a snapshot with rates, which take two samples, of the containers whose directories `is_wanted` accepts.
pub(crate) fn sample(observer: &mut Observer, is_wanted: impl Fn(&Path) -> bool) -> Snapshot {
    let first = observer.sample_of(&is_wanted);
    if first.containers.is_empty() && first.gpus.iter().all(|gpu| gpu.unlimited.is_empty()) {
        return first;
    }
    std::thread::sleep(SAMPLE_INTERVAL);
    observer.sample_of(is_wanted)
}

/// NVML is GPU time as NVML reports it, TIME as the container's own account has it.
const HEADER: [&str; 9] = ["CONTAINER", "GPU", "MEMORY", "LIMIT", "TIME", "NVML", "LIMIT", "REFUSED", "AGE"];

/// Formats the snapshot as a table with one line per container and GPU.
fn table(snapshot: &Snapshot) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    for container in &snapshot.containers {
        rows.extend(container.gpus.iter().map(|share| row(snapshot, container, share)));
        if container.gpus.is_empty() && container.damaged.is_none() {
            // None of its GPUs is known: there is neither NVML nor an inventory.
            let mut unknown = HEADER.map(|_| "-".to_owned());
            (unknown[0], unknown[8]) = (container.name(), duration(snapshot.time - container.created as f64));
            rows.push(unknown);
        }
    }
    let mut text = aligned(&rows);
    for container in &snapshot.containers {
        if let Some(reason) = &container.damaged {
            text += &format!("{}: {reason}\n", container.name());
        }
    }
    text
}

/// Letters of a command that are printed at most, so that a row fits a line. `/proc/PID/cmdline` has the rest.
const MAX_COMMAND: usize = 60;

/// Formats the processes on the GPUs that belong to no listed container, with a title above them; for each GPU the one with most memory
/// first. Empty if there are none. `is_root`: all containers of the machine are listed, so the processes have no limits.
fn unlimited_table(snapshot: &Snapshot, origins: &mut Origins, is_root: bool) -> String {
    let title = if is_root { "WITHOUT LIMITS" } else { "IN NO CONTAINER OF THIS USER" };
    let mut rows = vec![["PID", "USER", "GPU", "MEMORY", title].map(str::to_owned)];
    for gpu in &snapshot.gpus {
        let mut processes: Vec<&Unlimited> = gpu.unlimited.iter().collect();
        processes.sort_by_key(|process| Reverse(process.held));
        rows.extend(processes.into_iter().map(|process| unlimited_row(gpu, process, origins)));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", aligned(&rows)) }
}

fn unlimited_row(gpu: &Gpu, process: &Unlimited, origins: &mut Origins) -> [String; 5] {
    origins.look_up(process.pid);
    let origin = origins.of(process.pid);
    let command = if origin.command.is_empty() { process.name.clone() } else { origin.command };
    let mut letters = command.chars();
    let mut shown: String = letters.by_ref().take(MAX_COMMAND).collect();
    if letters.next().is_some() {
        shown.push('…');
    }
    let user = if origin.user.is_empty() { "-".to_owned() } else { origin.user };
    [process.pid.to_string(), user, gpu.index.to_string(), process.held.map_or_else(|| "-".to_owned(), bytes), shown]
}

/// Formats rows with aligned columns, one in a line.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(snapshot: &Snapshot, container: &ContainerState, share: &Share) -> [String; 9] {
    let index = snapshot.gpus.iter().find(|gpu| gpu.uuid == share.uuid).map(|gpu| gpu.index.to_string());
    let none = || "-".to_owned();
    [
        container.name(),
        index.unwrap_or_else(|| share.uuid.clone()),
        bytes(share.held.unwrap_or(0).max(share.charged)),
        share.memory_limit.map_or_else(none, bytes),
        share.utilization.map_or_else(none, |percent| format!("{percent:.0}%")),
        share.observed.map_or_else(none, |percent| format!("{percent:.0}%")),
        share.cores.map_or_else(none, |percent| format!("{percent}%")),
        share.refused.to_string(),
        duration(snapshot.time - container.created as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origins::Origin;

    #[test]
    fn processes_without_limits_have_a_line_the_largest_first() {
        let process = |pid, held| Unlimited { pid, name: "render".to_owned(), held, observed: None };
        let gpu = |index, unlimited| Gpu { index, uuid: format!("GPU-{index}"), unlimited, ..Gpu::default() };
        let gpus = vec![gpu(0, vec![process(7, None), process(8, Some(1 << 30))]), gpu(1, vec![process(9, Some(3 << 29))])];
        let mut origins = Origins::of_host();
        origins.source = |pid, _| match pid {
            7 => Origin::default(),
            8 => Origin { user: "ana".to_owned(), command: "train --epochs 90".to_owned() },
            _ => Origin { user: "1000".to_owned(), command: "x".repeat(99) },
        };
        let snapshot = Snapshot { gpus, ..Snapshot::default() };
        let expected = format!(
            "\nPID  USER  GPU  MEMORY  WITHOUT LIMITS\n8    ana   0    1Gi     train --epochs 90\n\
             7    -     0    -       render\n9    1000  1    1.5Gi   {}…\n",
            "x".repeat(60)
        );
        assert_eq!(unlimited_table(&snapshot, &mut origins, true), expected);
        assert!(
            unlimited_table(&snapshot, &mut origins, false).contains("IN NO CONTAINER OF THIS USER\n"),
            "root's containers may have them"
        );
        assert_eq!(unlimited_table(&Snapshot { gpus: vec![gpu(0, vec![])], ..Snapshot::default() }, &mut origins, true), "");
    }

    #[test]
    fn a_container_without_known_gpus_has_a_line() {
        let container = ContainerState { id: "c0ffee".to_owned(), created: 40, ..ContainerState::default() };
        let snapshot = Snapshot { time: 100.0, containers: vec![container], ..Snapshot::default() };
        assert_eq!(table(&snapshot).lines().nth(1), Some("c0ffee     -    -       -      -     -     -      -        1m"));
    }

    #[test]
    fn table_has_a_line_for_each_share() {
        let share = Share {
            uuid: "GPU-1".to_owned(),
            memory_limit: Some(2 << 30),
            cores: Some(30),
            charged: 1 << 30,
            held: Some(3 << 29),
            utilization: Some(29.6),
            observed: Some(91.0),
            refused: 2,
            ..Share::default()
        };
        let container = ContainerState { id: "c0ffee".to_owned(), created: 40, gpus: vec![share], ..ContainerState::default() };
        let snapshot = Snapshot { time: 100.0, containers: vec![container], ..Snapshot::default() };
        let expected = "CONTAINER  GPU    MEMORY  LIMIT  TIME  NVML  LIMIT  REFUSED  AGE\n\
                        c0ffee     GPU-1  1.5Gi   2Gi    30%   91%   30%    2        1m\n";
        assert_eq!(table(&snapshot), expected);
    }
}
