//! Format of CDI specifications.

use std::path::PathBuf;

use serde::Serialize;

/// Oldest CDI version with every field that is used here.
pub(super) const CDI_VERSION: &str = "0.5.0";

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) device_nodes: Vec<DeviceNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hooks: Vec<Hook>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mounts: Vec<Mount>,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceNode {
    pub(super) path: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hook {
    pub(super) hook_name: &'static str,
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<String>,
    /// Seconds after which the runtime kills the hook.
    pub(super) timeout: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mount {
    pub(super) host_path: PathBuf,
    pub(super) container_path: String,
    pub(super) options: [&'static str; 5],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) container_edits: Edits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) cdi_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_edits: Option<Edits>,
}
