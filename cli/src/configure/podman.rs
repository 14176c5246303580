//! Podman: a drop-in in `containers.conf.d` that adds a runtime or the folder of vgpu's hooks.

use super::drop_in::DropIn;
use super::options::HANDLER;
use super::toml_layers;
use toml_edit::{Array, DocumentMut, Item, Table, value};

/// Podman's drop-in. Podman documents two folders of hooks, but reads only the one in /usr/share by default.
pub const PODMAN: DropIn = DropIn {
    name: "podman",
    path: "containers.conf.d/99-vgpu.conf",
    suffix: ".conf",
    hooks: "oci/hooks.d",
    section: &["engine"],
    default: "runtime",
    program: &["runtimes", HANDLER],
    register,
};

/// Runtimes whose errors Podman reads as JSON by default (containers/common, `defaultConfig`). A configured list replaces it.
const DEFAULT_JSON: [&str; 7] = ["crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"];

/// Adds vgpu's runtime to `engine`.
fn register(layers: &[DocumentMut], runtime: &str, engine: &mut Table) {
    // Podman requests JSON errors from these runtimes, and shows vgpu's message instead of an exit status.
    let mut json = toml_layers::lookup(layers, &["engine", "runtime_supports_json"]).map(toml_layers::strings).unwrap_or_default();
    if json.is_empty() {
        json.extend(DEFAULT_JSON.map(str::to_owned));
    }
    if !json.iter().any(|name| name == HANDLER) {
        json.push(HANDLER.to_owned());
    }
    engine.insert("runtime_supports_json", value(Array::from_iter(json)));
    let mut runtimes = Table::new();
    runtimes.insert(HANDLER, value(Array::from_iter([runtime])));
    engine.insert("runtimes", Item::Table(runtimes));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "# Written by \"vgpu configure podman\"; \"vgpu configure podman --undo\" removes it.\n[engine]\n";

    #[test]
    fn drop_in_for_each_configuration() {
        for (description, layers, default, expected) in [
            (
                "empty configuration",
                "",
                false,
                "runtime_supports_json = [\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\", \"ocijail\", \"vgpu\"]\n",
            ),
            (
                "as default, with the operator's list",
                "[engine]\nruntime_supports_json = [\"x\"]\n",
                true,
                "runtime = \"vgpu\"\nruntime_supports_json = [\"x\", \"vgpu\"]\n",
            ),
        ] {
            let text = PODMAN.render(&[layers.parse().unwrap()], "/r", default, None);
            assert_eq!(text, format!("{HEADER}{expected}\n[engine.runtimes]\nvgpu = [\"/r\"]\n"), "{description}");
            assert!(PODMAN.is_ours(&text));
            assert_eq!(PODMAN.is_default(&text), default);
        }
    }
}
