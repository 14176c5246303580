//! Alnair's environment, and the limits file that its device plugin puts into the container's workspace.

use std::collections::BTreeMap;

use crate::dialect::parse::{cores, memory, path};
use crate::error::Result;
use crate::quantity::ALNAIR;
use crate::request::{GpuRequests, Request};
use crate::setting::{Origin, Setting, Sourced};

/// Variable with the container path of the workspace, which has the file [`LIMITS_FILE`].
pub const WORKSPACE: &str = "ALNAIR_WORKSPACE_PATH";
/// File in the workspace with a line `vmem:<bytes>`.
pub const LIMITS_FILE: &str = "limits";

/// Reads `ALNAIR_VGPU_COMPUTE_PERCENTILE`, the content of the limits file, and `PFLOG`.
///
/// # Errors
/// The first value that Alnair does not document.
pub fn read(env: &BTreeMap<String, String>, limits: Option<&str>, request: &mut Request) -> Result<GpuRequests> {
    let mut requests = GpuRequests::default();
    if let Some(value) = env.get("ALNAIR_VGPU_COMPUTE_PERCENTILE") {
        requests.all.cores = cores(Setting::environment("ALNAIR_VGPU_COMPUTE_PERCENTILE", value), request)?;
    }
    if let Some(value) = limits.and_then(|text| text.lines().find_map(|line| line.strip_prefix("vmem:"))) {
        let setting = Setting { origin: Origin::File, key: "vmem".to_owned(), value: value.to_owned() };
        requests.all.memory = Some(memory(setting, &ALNAIR)?);
    }
    if let Some(value) = env.get("PFLOG")
        && let Some(dir) = path(value)
    {
        request.trace_dir = Some(Sourced { value: dir, setting: Setting::environment("PFLOG", value) });
    }
    Ok(requests)
}
