//! Alnair's environment, and the limits file that its device plugin puts into the container's workspace.

use std::collections::BTreeMap;

use crate::dialect::parse::{cores, path, said};
use crate::error::Result;
use crate::quantity::ALNAIR;
use crate::request::{Claim, Request};
use crate::setting::{Place, Said, Setting};

/// The variable that says where in the container the workspace is mounted; the limits are in its file [`LIMITS_FILE`].
pub const WORKSPACE: &str = "ALNAIR_WORKSPACE_PATH";
/// The file in the workspace: a line `vmem:<bytes>`.
pub const LIMITS_FILE: &str = "limits";

/// Reads `ALNAIR_VGPU_COMPUTE_PERCENTILE`, the contents of the limits file, and `PFLOG`.
///
/// # Errors
/// The first value that is not as Alnair has it.
pub fn read(env: &BTreeMap<String, String>, limits: Option<&str>, request: &mut Request) -> Result<Claim> {
    let mut claim = Claim::default();
    if let Some(value) = env.get("ALNAIR_VGPU_COMPUTE_PERCENTILE") {
        claim.all.cores = cores(Setting::environment("ALNAIR_VGPU_COMPUTE_PERCENTILE", value))?;
    }
    if let Some(value) = limits.and_then(|text| text.lines().find_map(|line| line.strip_prefix("vmem:"))) {
        let setting = Setting { place: Place::File, key: "vmem".to_owned(), value: value.to_owned() };
        claim.all.memory = Some(said(setting, |text| ALNAIR.parse(text), ALNAIR.accepted)?);
    }
    if let Some(value) = env.get("PFLOG")
        && let Some(folder) = path(value)
    {
        request.trace_dir = Some(Said { value: folder, by: Setting::environment("PFLOG", value) });
    }
    Ok(claim)
}
