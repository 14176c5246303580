//! `vgpu set`: changes a running container's limits.

use crate::config_args::ConfigArgs;
use crate::human::bytes;
use crate::outcome::Outcome;
use std::process::ExitCode;
use vgpu_config::quantity;
use vgpu_monitor::account::Reader;
use vgpu_monitor::change::{self, Change, Memory};
use vgpu_monitor::container::{self, Container};
use vgpu_monitor::observer::Observer;

/// Change a running container's limits
///
/// Its processes see the change at their next call. Where a container holds more than it is lowered to, it keeps what it
/// holds, and gets nothing more until it holds less.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub struct Args {
    /// Which container: its id or the beginning of it, or its name, its pod's, pod/container or namespace/pod/container
    container: String,
    /// Device memory for each GPU, in MiB or with a unit (4Gi), in percent of the GPU's own (25%), or "none"
    #[arg(long, value_name = "AMOUNT", value_parser = memory, group = "what")]
    gpumem: Option<Memory>,
    /// Compute time in percent, 1 to 99; 100 or "none" is no limit
    #[arg(long, value_name = "PERCENT", value_parser = percent, group = "what")]
    gpucores: Option<u32>,
    /// Compute time in percent while nobody else wants the GPU; "none" is no more than --gpucores
    #[arg(long, value_name = "PERCENT", value_parser = percent_soft, group = "what")]
    gpucores_soft: Option<u32>,
    /// Only on this GPU, by its UUID, or by the container's own index where its limits are kept by that
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

fn memory(text: &str) -> Result<Memory, String> {
    let accepted = || format!("accepted is {}, or 1% to 100%, or none", quantity::ANNOTATION.accepted);
    match (text, text.strip_suffix('%')) {
        ("none", _) => Some(Memory::Unlimited),
        (_, Some(percent)) => quantity::percent(percent).map(Memory::Percent),
        _ => quantity::ANNOTATION.parse(text).map(Memory::Bytes),
    }
    .ok_or_else(accepted)
}

/// 100 percent is no limit, which is 0.
fn percent(text: &str) -> Result<u32, String> {
    percent_soft(text).map(|percent| if percent == 100 { 0 } else { percent })
}

fn percent_soft(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        _ => quantity::percent(text).ok_or_else(|| "accepted is a whole number of percent from 1 to 100, or none".to_owned()),
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        let state_dir = self.config.state_dir()?;
        let containers = container::list(&state_dir, &mut Reader::default());
        let container = container::find(&containers, &self.container)?;
        let wanted = Change { memory: self.gpumem, cores: self.gpucores, cores_soft: self.gpucores_soft };
        change::change(container, self.gpu.as_deref(), wanted)?;
        report(container, &mut Observer::new(&state_dir));
        Ok(ExitCode::SUCCESS)
    }
}

/// What is in force now, and where the container holds more than that.
fn report(container: &Container, observer: &mut Observer) {
    let snapshot = observer.sample();
    let Some(now) = snapshot.containers.iter().find(|now| container.place.ends_with(&now.place)) else { return };
    for share in &now.gpus {
        let memory = share.memory_limit.map_or_else(|| "no memory limit".to_owned(), bytes);
        let cores = share.cores.map_or_else(|| "no compute limit".to_owned(), |percent| format!("{percent}% of the GPU's time"));
        let soft = share.cores_soft.map_or_else(String::new, |percent| format!(" (up to {percent}% while it is free)"));
        println!("{}: {}: {memory}, {cores}{soft}", now.id, share.uuid);
        let held = share.held.unwrap_or(0).max(share.charged);
        if let Some(limit) = share.memory_limit.filter(|limit| held > *limit) {
            let (held, over) = (bytes(held), bytes(held - limit));
            println!("{}: {}: it holds {held}; it gets no more memory until it has given back {over}", now.id, share.uuid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_write_them() {
        for (text, expected) in [
            ("2Gi", Some(Memory::Bytes(2 << 30))),
            ("512", Some(Memory::Bytes(512 << 20))),
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
