//! Options for limits, and the limits decided from them: read and decided as the annotations of a container are.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use vgpu_config::decide::Container;
use vgpu_config::devices::{Visible, VisibleDevices, candidates};
use vgpu_config::dialect::annotations::{CORES, CORES_SOFT, MEMORY, MEMORY_PERCENT, OVERSUBSCRIBE, PRIORITY};
use vgpu_config::dialect::{self, Sources, nvidia};
use vgpu_config::{Inventory, Limits, Policy};
use vgpu_monitor::gpus::{Gpus, explain};

/// Options for limits.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Options {
    /// Device memory per GPU: MiB, a quantity (4Gi), or a percentage of the GPU's memory (25%)
    #[arg(long, value_name = "SIZE", required_unless_present = "cores")]
    mem: Option<String>,
    /// GPU time in percent, 1 to 99
    #[arg(long, value_name = "PERCENT")]
    cores: Option<String>,
    /// GPU time in percent while no other program or container wants it
    #[arg(long, value_name = "PERCENT")]
    cores_soft: Option<String>,
    /// With 0, it never waits for others' turns while within its limit; default 1; no effect without `vgpu monitor`
    #[arg(long, value_name = "N")]
    priority: Option<String>,
    /// Let memory beyond the limit spill to the host, as far as the policy allows
    #[arg(long)]
    oversubscribe: bool,
    /// Use only these GPUs: a comma-separated list of indices or UUIDs (default: those in CUDA_VISIBLE_DEVICES, else all)
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
}

/// What was decided.
#[derive(Debug)]
pub(super) struct Decided {
    /// The limits.
    pub limits: Limits,
    /// Variables that make the chosen GPUs the only visible ones.
    pub visible: Vec<(&'static str, String)>,
}

impl Options {
    /// Decides the limits.
    pub(super) fn decide(&self, policy: &Policy, state_dir: &Path) -> Result<Decided, Box<dyn Error>> {
        let inventory = self.gpus.as_ref().map(|_| inventory(state_dir)).transpose()?;
        self.decide_with(policy, inventory.as_ref())
    }

    fn decide_with(&self, policy: &Policy, inventory: Option<&Inventory>) -> Result<Decided, Box<dyn Error>> {
        let annotations = self.annotations();
        let env: BTreeMap<String, String> = self.gpus.iter().map(|list| (nvidia::VISIBLE.to_owned(), list.clone())).collect();
        let sources = Sources { annotations: &annotations, env: &env, container: None, alnair_limits: None, claims: &[] };
        let decided = dialect::read(&sources).and_then(|request| vgpu_config::decide(&request, policy, inventory, Container::default()));
        let mut limits = decided
            .map_err(|error| in_options(&error.to_string()))?
            .filter(Limits::is_limited)
            .ok_or("--cores: expected less than 100 percent, or a limit on memory (--mem)")?;
        let uuids = match (&self.gpus, inventory) {
            (Some(list), Some(inventory)) => Some(uuids(list, inventory)?),
            _ => None,
        };
        let visible = uuids.iter().map(|uuids| ("CUDA_VISIBLE_DEVICES", uuids.join(","))).collect();
        limits.devices = uuids;
        Ok(Decided { limits, visible })
    }

    /// Returns the options as a container's annotations.
    fn annotations(&self) -> BTreeMap<String, String> {
        let percent = self.mem.as_deref().and_then(|mem| mem.strip_suffix('%'));
        let settings = [
            (MEMORY, self.mem.as_deref().filter(|_| percent.is_none())),
            (MEMORY_PERCENT, percent),
            (CORES, self.cores.as_deref()),
            (CORES_SOFT, self.cores_soft.as_deref()),
            (PRIORITY, self.priority.as_deref()),
            (OVERSUBSCRIBE, self.oversubscribe.then_some("true")),
        ];
        settings.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    }
}

/// Returns a message about annotations with the options instead.
fn in_options(message: &str) -> String {
    // A key that another one begins with comes after it.
    let names = [
        (MEMORY_PERCENT, "--mem"),
        (OVERSUBSCRIBE, "--oversubscribe"),
        (MEMORY, "--mem"),
        (CORES_SOFT, "--cores-soft"),
        (CORES, "--cores"),
        (PRIORITY, "--priority"),
    ];
    names.iter().fold(message.replace("annotation ", ""), |message, (key, option)| message.replace(key, option))
}

/// Returns the GPUs of this machine: those that `vgpu monitor` has listed, else NVML's.
fn inventory(state_dir: &Path) -> Result<Inventory, Box<dyn Error>> {
    if let Some(known) = Inventory::load(state_dir)? {
        return Ok(known);
    }
    let found = Gpus::open().and_then(|nvml| nvml.inventory());
    found.map_err(|error| format!("--gpus: NVML: {}", explain(&error)).into())
}

/// Returns the UUIDs of the GPUs in a list.
fn uuids(list: &str, inventory: &Inventory) -> Result<Vec<String>, String> {
    let known = || inventory.gpus.iter().map(|gpu| format!("{} ({})", gpu.index, gpu.uuid)).collect::<Vec<_>>().join(", ");
    let refused = || format!("--gpus: \"{}\": expected a comma-separated list of {}", list.escape_debug(), known());
    let visible = Visible::parse(list);
    if !matches!(visible.devices, VisibleDevices::All | VisibleDevices::List(_)) {
        return Err(refused());
    }
    let found = candidates(&visible, &[], Some(inventory)).ok_or_else(refused)?;
    found.iter().map(|gpu| Some(gpu.format_uuid(gpu.gpu.and(gpu.uuid)?))).collect::<Option<_>>().ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::inventory::Gpu;
    use vgpu_config::limits::Which;

    const UUIDS: [&str; 2] = ["GPU-01010101-0101-0101-0101-010101010101", "GPU-02020202-0202-0202-0202-020202020202"];

    fn decide(options: &Options, policy: &str) -> Result<Decided, String> {
        let gpu = |index: u32| Gpu {
            index,
            uuid: UUIDS[index as usize].to_owned(),
            name: "Test".to_owned(),
            memory: 80 << 30,
            minor: None,
            mig: Vec::new(),
        };
        let inventory = Inventory { gpus: vec![gpu(0), gpu(1)] };
        options.decide_with(&Policy::parse(policy).unwrap(), Some(&inventory)).map_err(|error| error.to_string())
    }

    fn options(mem: &str, cores: &str) -> Options {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Options { mem: given(mem), cores: given(cores), ..Options::default() }
    }

    #[test]
    fn options_are_decided_as_annotations_are() {
        let all = Options { cores_soft: Some("60".into()), priority: Some("0".into()), oversubscribe: true, ..options("4Gi", "30") };
        let decided = decide(&all, "").unwrap();
        let entry = &decided.limits.gpus[0];
        assert_eq!((decided.limits.gpus.len(), &entry.gpu, decided.limits.priority), (1, &Which::All, 0));
        assert_eq!((entry.memory.unwrap().get(), entry.cores, entry.cores_soft, entry.spill), (4 << 30, Some(30), Some(60), Some(4 << 30)));
        assert!(decided.visible.is_empty());
        let percent = decide(&options("25%", ""), "[defaults]\ncores = 40").unwrap();
        assert_eq!((percent.limits.gpus[0].memory_percent, percent.limits.gpus[0].cores), (Some(25), Some(40)));
    }

    #[test]
    fn errors_name_options() {
        let of = |options, policy| decide(&options, policy).unwrap_err();
        assert!(
            of(options("4Gb", ""), "").starts_with("--mem: \"4Gb\": expected a positive integer (MiB)"),
            "{}",
            of(options("4Gb", ""), "")
        );
        assert!(of(options("200%", ""), "").starts_with("--mem: \"200\": expected an integer from 1 to 100"));
        assert_eq!(
            of(options("4Gi", ""), "[ceilings]\nmemory = \"1Gi\""),
            "--mem: \"4Gi\": expected at most 1024 MiB (the operator's ceiling)"
        );
        assert_eq!(of(options("", "100"), ""), "--cores: expected less than 100 percent, or a limit on memory (--mem)");
        let soft = Options { cores_soft: Some("20".into()), ..options("", "30") };
        assert_eq!(of(soft, ""), "--cores-soft: \"20\": expected at least the --cores of the same container");
    }

    #[test]
    fn chosen_gpus_are_the_visible_ones() {
        let with = |list: &str| decide(&Options { gpus: Some(list.to_owned()), ..options("1Gi", "") }, "");
        let second = with("1").unwrap();
        assert_eq!(second.visible, [("CUDA_VISIBLE_DEVICES", UUIDS[1].to_owned())]);
        assert_eq!(second.limits.devices.as_deref(), Some(&[UUIDS[1].to_owned()][..]));
        assert!(second.limits.gpus.iter().all(|gpu| gpu.memory.is_some()), "{second:?}");
        assert_eq!(with(&format!("{},0", UUIDS[1])).unwrap().visible[0].1, format!("{},{}", UUIDS[1], UUIDS[0]));
        for unknown in ["2", "none", "", "0,x", "GPU-03030303-0303-0303-0303-030303030303"] {
            assert!(with(unknown).unwrap_err().starts_with("--gpus: "), "{unknown}");
        }
    }
}
