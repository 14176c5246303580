//! The rules, as `layers.toml` has them.

use serde::Deserialize;

/// The rules of the workspace.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Every crate of the workspace, lowest first: a crate depends only on crates before it.
    #[serde(rename = "crate")]
    pub crates: Vec<CrateRules>,
}

/// The rules of one crate.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrateRules {
    /// The package's name.
    pub name: String,
    /// The crates of this workspace that its `[dependencies]` may name.
    #[serde(default)]
    pub may_depend_on: Vec<String>,
    /// Its files by layer, lowest first; empty: only circles are checked. See [`covers`] for what an entry stands for.
    #[serde(default)]
    pub layers: Vec<Vec<String>>,
}

/// Returns whether an entry of a list covers a file: `memory.rs` is that file alone, `memory` is `memory.rs` and everything in the
/// folder `memory`.
pub fn covers(entry: &str, file: &str) -> bool {
    file.strip_prefix(entry).is_some_and(|rest| rest.starts_with('/') || rest == ".rs" || rest.is_empty() && entry.ends_with(".rs"))
}
