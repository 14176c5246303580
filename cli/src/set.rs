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
use vgpu_monitor::snapshot::{ContainerState, Share};
use vgpu_oci_hook::persistent;

mod bounds;
mod kept;

/// Change the limits of a running container
///
/// The container's processes see the new limits at their next call. A container that holds more memory than its new
/// limit keeps it, but its allocations fail until it is below the limit. The policy's ceilings do not bind the operator: a change that exceeds
/// one is made, with a note.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct Args {
    /// Container: its id or a prefix of it, its name, its pod's name, pod/container or namespace/pod/container
    #[arg(required_unless_present = "kept")]
    container: Option<String>,
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
    /// Give the container these limits again when it is started again, while what it requests comes to the same. Without this option, the
    /// change lasts until the container ends, and ends what an earlier change with this option keeps
    #[arg(long)]
    persist: bool,
    /// Forget what --persist keeps for the container, which may be gone. A running one is not changed
    #[arg(long, group = "what", conflicts_with_all = ["gpumem", "gpucores", "gpucores_soft", "gpu", "persist", "kept"])]
    forget: bool,
    /// List the changes that --persist keeps, also for containers that are gone
    #[arg(long, group = "what", conflicts_with_all = ["container", "gpumem", "gpucores", "gpucores_soft", "gpu", "persist"])]
    kept: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

fn memory(text: &str) -> Result<Memory, String> {
    match (text, text.strip_suffix('%')) {
        ("none", _) => Some(Memory::Unlimited),
        (_, Some(percent)) => quantity::percent(percent).map(Memory::Percent),
        _ => quantity::ANNOTATION.parse(text).map(Memory::Bytes),
    }
    .ok_or_else(|| format!("expected none, a percentage from 1% to 100%, or {}", quantity::ANNOTATION.advice(text)))
}

/// Parses a hard limit in percent. 100 and "none" mean no limit, which is stored as 0.
fn percent(text: &str) -> Result<u32, String> {
    percent_soft(text).map(|percent| if percent == 100 { 0 } else { percent })
}

/// Parses a soft limit in percent. "none" is stored as 0.
fn percent_soft(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        _ => quantity::percent(text).ok_or_else(|| format!("expected none, or {}", quantity::percent_advice(text, quantity::PERCENT))),
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let name = self.container.as_deref().unwrap_or_default();
        if self.kept || self.forget {
            let state_dir = self.config.state_dir()?;
            return if self.kept { kept::list(&state_dir) } else { kept::forget(&state_dir, name) };
        }
        let state_dir = self.config.listed_state_dir()?;
        let containers = container::list(&state_dir, &mut Reader::default());
        let container = selection::find(&containers, name)?;
        // Without a hard limit, a soft one means nothing.
        let cores_soft = self.gpucores_soft.or(self.gpucores.filter(|&cores| cores == 0));
        let requested = Change { memory: self.gpumem, cores: self.gpucores, cores_soft };
        let mut observer = Observer::new(&state_dir);
        let before = state(container, &mut observer).unwrap_or_default();
        let chosen = |share: &&Share| self.gpu.as_ref().is_none_or(|gpu| share.uuid.eq_ignore_ascii_case(gpu));
        let memory_of = |share: &Share| observer.inventory().gpus.iter().find(|gpu| gpu.uuid == share.uuid).map(|gpu| gpu.memory);
        for share in before.gpus.iter().filter(chosen) {
            bounds::check(&requested, share, memory_of(share))?;
        }
        // Without a valid policy there are no ceilings, and no containers that start.
        let policy = self.config.policy().unwrap_or_default();
        for exceeded in before.gpus.iter().filter(chosen).flat_map(|share| bounds::exceeded(&requested, share, memory_of(share), &policy)) {
            eprintln!("vgpu: note: {exceeded}");
        }
        change::change(container, self.gpu.as_deref(), requested, &before.gpus)?;
        if let Some(after) = state(container, &mut observer) {
            change::keep(container, &after.gpus)?;
            report(&before, &after);
        }
        match container::read(&container.dir, &mut Reader::default()) {
            Some(changed) if self.persist => persistent::write(&state_dir, &changed.record)?,
            _ => {
                persistent::forget(&state_dir, &container.record.id)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the state of a container. `None` if it is gone.
fn state(container: &Container, observer: &mut Observer) -> Option<ContainerState> {
    let snapshot = observer.sample_of(|dir| dir == container.dir);
    snapshot.containers.into_iter().find(|current| container.dir.ends_with(&current.dir_name))
}

/// Describes the limits of a share.
fn limits(share: &Share) -> String {
    let memory = share.memory_limit.map_or_else(|| "no memory limit".to_owned(), bytes);
    let cores = share.cores.map_or_else(|| "no compute limit".to_owned(), |percent| format!("{percent}% of the GPU's time"));
    let soft = share.cores_soft.map_or_else(String::new, |percent| format!(" (up to {percent}% while it is idle)"));
    format!("{memory}, {cores}{soft}")
}

/// Prints the limits now in force, those before, and by how much the container exceeds them.
fn report(before: &ContainerState, current: &ContainerState) {
    if current.gpus.is_empty() {
        println!("{}: limits changed; its GPUs are not known", current.name());
    }
    for share in &current.gpus {
        let (name, now) = (current.name(), limits(share));
        let old = before.gpus.iter().find(|old| old.uuid == share.uuid).map(limits).filter(|old| *old != now);
        println!("{name}: {}: {now}{}", share.uuid, old.map_or_else(String::new, |old| format!("; before: {old}")));
        let held = share.held.unwrap_or(0).max(share.charged);
        if let Some(limit) = share.memory_limit.filter(|limit| held > *limit) {
            let (held, over) = (bytes(held), bytes(held - limit));
            println!("{name}: {}: holds {held}; allocations fail until it frees {over}", share.uuid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::quantity::Bytes;

    #[test]
    fn what_was_meant_is_advised() {
        assert!(memory("4GB").unwrap_err().ends_with(": did you mean 4Gi?"));
        assert!(percent("30%").unwrap_err().ends_with("from 1 to 100 (percent): did you mean 30?"));
    }

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
