//! CRI-O: a drop-in in `crio.conf.d` that adds a runtime handler or the folder of vgpu's hooks.

use super::drop_in::DropIn;
use super::options::HANDLER;
use super::toml_layers;
use toml_edit::{DocumentMut, Item, Table, value};

/// CRI-O's drop-in.
pub const CRIO: DropIn = DropIn {
    name: "crio",
    path: "crio.conf.d/99-vgpu.toml",
    suffix: "",
    hooks: "hooks.d",
    section: &["crio", "runtime"],
    default: "default_runtime",
    program: &["runtimes", HANDLER, "runtime_path"],
    register,
};

/// Adds vgpu's handler to `section`.
fn register(layers: &[DocumentMut], runtime: &str, section: &mut Table) {
    let mut runtimes = Table::new();
    runtimes.set_implicit(true);
    runtimes.insert(HANDLER, Item::Table(entry(layers, runtime)));
    section.insert("runtimes", Item::Table(runtimes));
}

/// Returns vgpu's handler, with the monitor and permissions of the default handler.
///
/// `runtime_root` belongs to the low-level runtime. It is inherited, too, so that the runtime's own tools find the containers.
fn entry(layers: &[DocumentMut], runtime: &str) -> Table {
    let default = toml_layers::lookup(layers, &["crio", "runtime", "default_runtime"]).and_then(Item::as_str);
    let default = default.filter(|name| !name.is_empty() && *name != HANDLER);
    let candidates = default.into_iter().chain(["crun", "runc"]);
    let model = candidates
        .filter_map(|name| toml_layers::lookup(layers, &["crio", "runtime", "runtimes", name])?.as_table_like())
        .find(|table| table.get("runtime_type").and_then(Item::as_str).is_none_or(|kind| kind.is_empty() || kind == "oci"));
    let mut entry = Table::new();
    entry.insert("runtime_path", value(runtime));
    entry.insert("runtime_type", value("oci"));
    const INHERITED: [&str; 7] = [
        "runtime_root",
        "monitor_path",
        "monitor_cgroup",
        "monitor_env",
        "allowed_annotations",
        "privileged_without_host_devices",
        "container_min_memory",
    ];
    for key in INHERITED {
        if let Some(found) = model.and_then(|table| table.get(key)).and_then(Item::as_value) {
            let mut found = found.clone();
            found.decor_mut().clear();
            entry.insert(key, Item::Value(found));
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const HEADER: &str = "# Written by \"vgpu configure crio\"; \"vgpu configure crio --undo\" removes it.\n";

    /// Keys of a runtime handler: `RuntimeHandler` in CRI-O's pkg/config/config.go.
    const DOCUMENTED: [&str; 11] = [
        "runtime_path",
        "runtime_type",
        "runtime_root",
        "runtime_config_path",
        "privileged_without_host_devices",
        "allowed_annotations",
        "monitor_path",
        "monitor_cgroup",
        "monitor_env",
        "container_min_memory",
        "platform_runtime_paths",
    ];

    #[test]
    fn drop_in_for_each_configuration() {
        let own = "[crio.runtime.runtimes.vgpu]\nruntime_path = \"/r\"\nruntime_type = \"oci\"\n";
        for (description, layers, default, hooks, expected) in [
            ("empty configuration", "", false, None, own.to_owned()),
            ("as default", "", true, None, format!("[crio.runtime]\ndefault_runtime = \"vgpu\"\n\n{own}")),
            (
                "the default handler's monitor is inherited",
                "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/c\" # x\nmonitor_path = \"/conmon\" # y\nruntime_root = \"/run/crun\"\n",
                false,
                None,
                own.to_owned() + "runtime_root = \"/run/crun\"\nmonitor_path = \"/conmon\"\n",
            ),
            (
                "settings of a virtual machine's handler are not",
                "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\nruntime_type = \"vm\"\nmonitor_path = \"/m\"\n",
                false,
                None,
                own.to_owned(),
            ),
            (
                "hooks in addition to the default folder",
                "",
                false,
                Some("/etc/crio/hooks.d"),
                "[crio.runtime]\nhooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/crio/hooks.d\"]\n".into(),
            ),
            (
                "hooks in addition to the operator's folder",
                "[crio.runtime]\nhooks_dir = [\"/h\"]\n",
                false,
                Some("/etc/crio/hooks.d"),
                "[crio.runtime]\nhooks_dir = [\"/h\", \"/etc/crio/hooks.d\"]\n".into(),
            ),
        ] {
            let text = CRIO.render(&[layers.parse().unwrap()], "/r", default, hooks.map(Path::new));
            assert_eq!(text, HEADER.to_owned() + &expected, "{description}");
            assert!(CRIO.is_ours(&text));
            assert_eq!(CRIO.is_default(&text), default, "{description}");
            let drop_in: DocumentMut = text.parse().unwrap();
            let section = drop_in["crio"]["runtime"].as_table().unwrap();
            let handler = section.get("runtimes").and_then(|all| all["vgpu"].as_table());
            let unknown = |table: &Table, known: &[&str]| table.iter().any(|(key, _)| !known.contains(&key));
            assert!(!unknown(section, &["default_runtime", "hooks_dir", "runtimes"]), "{description}");
            assert!(!handler.is_some_and(|table| unknown(table, &DOCUMENTED)), "{description}");
        }
    }
}
