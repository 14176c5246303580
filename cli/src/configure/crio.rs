//! CRI-O: a drop-in in `crio.conf.d` that adds a runtime handler, or that has CRI-O read our hooks.

use super::{Changes, Error, HANDLER, Wish, hooks, owned, toml};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

const NAME: &str = "crio";

/// Where our drop-in for the main file `config` lies.
pub(crate) fn drop_in(config: &Path) -> PathBuf {
    config.with_file_name("crio.conf.d").join("99-vgpu.toml")
}

/// Where our hooks go. Podman has its own, so that each can be configured and undone by itself.
fn hooks_folder(config: &Path) -> PathBuf {
    config.with_file_name("hooks.d")
}

pub(super) fn configure(wish: &Wish) -> Result<Changes, Error> {
    let path = drop_in(&wish.config);
    let folder = hooks_folder(&wish.config);
    let layers = toml::layers(&wish.config, &folder_of(&path), "", &path)?;
    let was_default = crate::files::read(&path)?.is_some_and(|text| is_default(&text));
    let hooks_dir = wish.hook.as_ref().map(|_| folder.as_path());
    let text = render(&layers, &wish.runtime, wish.default || (was_default && wish.hook.is_none()), hooks_dir);
    let drop_in = owned::write(&path, text, is_ours)?;
    hooks::beside(drop_in, &folder, wish.hook.as_deref())
}

pub(super) fn undo(config: &Path) -> Result<Changes, Error> {
    hooks::beside(owned::remove(&drop_in(config), is_ours)?, &hooks_folder(config), None)
}

/// Whether a drop-in was written by us.
pub(crate) fn is_ours(text: &str) -> bool {
    text.starts_with(&owned::mark(NAME))
}

/// Whether a drop-in makes our handler the default.
pub(crate) fn is_default(text: &str) -> bool {
    let doc: Result<DocumentMut, _> = text.parse();
    doc.is_ok_and(|doc| toml::last(&[doc], &["crio", "runtime", "default_runtime"]).and_then(Item::as_str) == Some(HANDLER))
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

/// The drop-in over `layers`. CRI-O merges tables key by key, so only what is new is in it.
fn render(layers: &[DocumentMut], runtime: &str, default: bool, hooks_dir: Option<&Path>) -> String {
    let mut section = Table::new();
    if default {
        section.insert("default_runtime", value(HANDLER));
    }
    match hooks_dir {
        Some(folder) => {
            let list = hooks::folders(layers, &["crio", "runtime", "hooks_dir"], folder);
            section.insert("hooks_dir", value(list));
        }
        None => {
            let mut runtimes = Table::new();
            runtimes.set_implicit(true);
            runtimes.insert(HANDLER, Item::Table(entry(layers, runtime)));
            section.insert("runtimes", Item::Table(runtimes));
        }
    }
    let only_tables = section.iter().all(|(_, item)| item.is_table());
    section.set_implicit(only_tables);
    let mut crio = Table::new();
    crio.set_implicit(true);
    crio.insert("runtime", Item::Table(section));
    let mut doc = DocumentMut::new();
    doc.insert("crio", Item::Table(crio));
    owned::header(NAME) + &doc.to_string()
}

/// Our handler: the default one's monitor and permissions, our program. `runtime_root` is the low-level runtime's and
/// stays the default one's too, so that its own tools find the containers.
fn entry(layers: &[DocumentMut], runtime: &str) -> Table {
    let default = toml::last(layers, &["crio", "runtime", "default_runtime"]).and_then(Item::as_str);
    let default = default.filter(|name| !name.is_empty() && *name != HANDLER);
    let names = default.into_iter().chain(["crun", "runc"]);
    let model = names
        .filter_map(|name| toml::last(layers, &["crio", "runtime", "runtimes", name])?.as_table_like())
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
    fn drop_ins() {
        let own = "[crio.runtime.runtimes.vgpu]\nruntime_path = \"/r\"\nruntime_type = \"oci\"\n";
        for (description, layers, default, hooks, expected) in [
            ("nothing said anywhere", "", false, None, own.to_owned()),
            ("as default", "", true, None, format!("[crio.runtime]\ndefault_runtime = \"vgpu\"\n\n{own}")),
            (
                "the default handler's monitor is ours too",
                "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/c\" # x\nmonitor_path = \"/conmon\" # y\nruntime_root = \"/run/crun\"\n",
                false,
                None,
                own.to_owned() + "runtime_root = \"/run/crun\"\nmonitor_path = \"/conmon\"\n",
            ),
            (
                "a virtual machine's settings are not",
                "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\nruntime_type = \"vm\"\nmonitor_path = \"/m\"\n",
                false,
                None,
                own.to_owned(),
            ),
            (
                "hooks beside the usual ones",
                "",
                false,
                Some("/etc/crio/hooks.d"),
                "[crio.runtime]\nhooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/crio/hooks.d\"]\n".into(),
            ),
            (
                "hooks beside the operator's",
                "[crio.runtime]\nhooks_dir = [\"/h\"]\n",
                false,
                Some("/etc/crio/hooks.d"),
                "[crio.runtime]\nhooks_dir = [\"/h\", \"/etc/crio/hooks.d\"]\n".into(),
            ),
        ] {
            let text = render(&[layers.parse().unwrap()], "/r", default, hooks.map(Path::new));
            assert_eq!(text, HEADER.to_owned() + &expected, "{description}");
            assert!(is_ours(&text));
            assert_eq!(is_default(&text), default, "{description}");
            let drop_in: DocumentMut = text.parse().unwrap();
            let section = drop_in["crio"]["runtime"].as_table().unwrap();
            let handler = section.get("runtimes").and_then(|all| all["vgpu"].as_table());
            let unknown = |table: &Table, known: &[&str]| table.iter().any(|(key, _)| !known.contains(&key));
            assert!(!unknown(section, &["default_runtime", "hooks_dir", "runtimes"]), "{description}");
            assert!(!handler.is_some_and(|table| unknown(table, &DOCUMENTED)), "{description}");
        }
    }
}
