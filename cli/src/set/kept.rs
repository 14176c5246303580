//! The changes that `--persist` keeps for containers that are started again: their list, and how they are forgotten.

use crate::human::bytes;
use crate::outcome::Outcome;
use std::path::Path;
use std::process::ExitCode;
use vgpu_config::limits::{GpuLimits, Which};
use vgpu_monitor::account::Reader;
use vgpu_monitor::text::printable;
use vgpu_monitor::{container, selection};
use vgpu_oci_hook::persistent::{self, Kept};

/// Prints what is kept, one container a line.
pub(super) fn list(state_dir: &Path) -> Outcome {
    let kept = persistent::list(state_dir)?;
    for Kept { id, bundle, decided, limits } in &kept {
        let bundle = printable(&bundle.display().to_string());
        println!("{id}: {}; its request comes to {}; bundle {bundle}", described(limits), described(decided));
    }
    if kept.is_empty() {
        println!("no changes of limits are kept");
    }
    Ok(ExitCode::SUCCESS)
}

/// Forgets what is kept for a container, which need not exist any more: then it is selected by its ID or the beginning of it.
pub(super) fn forget(state_dir: &Path, name: &str) -> Outcome {
    let ids: Vec<String> = persistent::list(state_dir)?.into_iter().map(|kept| kept.id).collect();
    let starting: Vec<&String> = ids.iter().filter(|id| !name.is_empty() && id.starts_with(name)).collect();
    let id = match starting[..] {
        _ if ids.iter().any(|id| id == name) => name.to_owned(),
        [only] => only.clone(),
        _ => selection::find(&container::list(state_dir, &mut Reader::default()), name)?.record.id.clone(),
    };
    if !persistent::forget(state_dir, &id)? {
        return Err(format!("container {}: expected one with a change that is kept (vgpu set --kept)", printable(&id)).into());
    }
    println!("{id}: when it is started again, its request decides");
    Ok(ExitCode::SUCCESS)
}

/// Describes limits in words, those of each GPU.
fn described(limits: &[GpuLimits]) -> String {
    let of_gpu = |limits: &GpuLimits| {
        let memory = limits.memory.map(|memory| bytes(memory.get()));
        let memory = memory.or(limits.memory_percent.map(|percent| format!("{percent}% of the memory")));
        let cores = limits.cores.map(|percent| format!("{percent}% of the time"));
        let soft = limits.cores_soft.map(|percent| format!("up to {percent}% while it is idle"));
        let all: Vec<String> = [memory, cores, soft].into_iter().flatten().collect();
        let all = if all.is_empty() { "no limits".to_owned() } else { all.join(", ") };
        match &limits.gpu {
            Which::All => all,
            Which::Uuid(uuid) => format!("{}: {all}", printable(uuid)),
            Which::Index(index) => format!("its GPU {index}: {all}"),
        }
    };
    limits.iter().map(of_gpu).collect::<Vec<_>>().join("; ")
}
