//! `vgpu set`: changes the limits of a running container.

use crate::config_args::ConfigArgs;
use crate::human::bytes;
use crate::outcome::Outcome;
use std::process::ExitCode;
use vgpu_config::quantity;
use vgpu_monitor::account::Reader;
use vgpu_monitor::change::{self, Change, Memory};
use vgpu_monitor::container::{self, Container};
use vgpu_monitor::observer::Observer;
use vgpu_monitor::selection;
use vgpu_monitor::snapshot::ContainerState;

/// Change the limits of a running container
///
/// The container's processes see the new limits at their next call. A container that holds more memory than its new
/// limit keeps it, but its allocations fail until it is below the limit.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct Args {
    /// Container: its id or a prefix of it, its name, its pod's name, pod/container or namespace/pod/container
    container: String,
    /// Device memory per GPU: MiB, a quantity (4Gi), a percentage of the GPU's memory (25%), or "none"
    #[arg(long, value_name = "AMOUNT", value_parser = memory, group = "what")]
    gpumem: Option<Memory>,
    /// GPU time in percent, 1 to 99; 100 or "none" removes the limit
    #[arg(long, value_name = "PERCENT", value_parser = percent, group = "what")]
    gpucores: Option<u32>,
    /// GPU time in percent while no other container uses the GPU; "none": not above --gpucores
    #[arg(long, value_name = "PERCENT", value_parser = percent_soft, group = "what")]
    gpucores_soft: Option<u32>,
    /// Change this GPU only: its UUID, or the container's own index if the limits are stored by index
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

fn memory(text: &str) -> Result<Memory, String> {
    let expected = || format!("expected {}, a percentage from 1% to 100%, or none", quantity::ANNOTATION.expected);
    match (text, text.strip_suffix('%')) {
        ("none", _) => Some(Memory::Unlimited),
        (_, Some(percent)) => quantity::percent(percent).map(Memory::Percent),
        _ => quantity::ANNOTATION.parse(text).map(Memory::Bytes),
    }
    .ok_or_else(expected)
}

/// Parses a hard limit in percent. 100 and "none" mean no limit, which is stored as 0.
fn percent(text: &str) -> Result<u32, String> {
    percent_soft(text).map(|percent| if percent == 100 { 0 } else { percent })
}

/// Parses a soft limit in percent. "none" is stored as 0.
fn percent_soft(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        _ => quantity::percent(text).ok_or_else(|| "expected an integer from 1 to 100 (percent), or none".to_owned()),
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let state_dir = self.config.listed_state_dir()?;
        let containers = container::list(&state_dir, &mut Reader::default());
        let container = selection::find(&containers, &self.container)?;
        let requested = Change { memory: self.gpumem, cores: self.gpucores, cores_soft: self.gpucores_soft };
        let mut observer = Observer::new(&state_dir);
        let before = state(container, &mut observer).unwrap_or_default();
        change::change(container, self.gpu.as_deref(), requested, &before.gpus)?;
        if let Some(after) = state(container, &mut observer) {
            change::keep(container, &after.gpus)?;
            report(&after);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the state of a container. `None` if it is gone.
fn state(container: &Container, observer: &mut Observer) -> Option<ContainerState> {
    let snapshot = observer.sample_of(|dir| dir == container.dir);
    snapshot.containers.into_iter().find(|current| container.dir.ends_with(&current.dir_name))
}

/// Prints the limits now in force, and by how much the container exceeds them.
fn report(current: &ContainerState) {
    for share in &current.gpus {
        let memory = share.memory_limit.map_or_else(|| "no memory limit".to_owned(), bytes);
        let cores = share.cores.map_or_else(|| "no compute limit".to_owned(), |percent| format!("{percent}% of the GPU's time"));
        let soft = share.cores_soft.map_or_else(String::new, |percent| format!(" (up to {percent}% while it is idle)"));
        println!("{}: {}: {memory}, {cores}{soft}", current.name(), share.uuid);
        let held = share.held.unwrap_or(0).max(share.charged);
        if let Some(limit) = share.memory_limit.filter(|limit| held > *limit) {
            let (held, over) = (bytes(held), bytes(held - limit));
            println!("{}: {}: holds {held}; allocations fail until it frees {over}", current.name(), share.uuid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::quantity::Bytes;

    #[test]
    fn limits_are_parsed_and_invalid_ones_refused() {
        for (text, expected) in [
            ("2Gi", Bytes::new(2 << 30).map(Memory::Bytes)),
            ("512", Bytes::new(512 << 20).map(Memory::Bytes)),
            ("25%", Some(Memory::Percent(25))),
            ("none", Some(Memory::Unlimited)),
            ("0", None),
            ("101%", None),
            ("-1", None),
            ("10Q", None),
        ] {
            assert_eq!(memory(text).ok(), expected, "{text}");
        }
        for (text, hard, soft) in [("50", Some(50), Some(50)), ("100", Some(0), Some(100)), ("none", Some(0), Some(0)), ("0", None, None)] {
            assert_eq!((percent(text).ok(), percent_soft(text).ok()), (hard, soft), "{text}");
        }
    }
}
