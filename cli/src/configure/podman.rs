//! Podman: a drop-in in `containers.conf.d` that adds a runtime, or that has Podman read our hooks.

use super::{Changes, Error, HANDLER, Wish, hooks, owned, toml};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, Item, Table, value};

const NAME: &str = "podman";
/// Whose errors Podman reads as JSON where nothing is said (containers/common, `defaultConfig`). A list replaces it.
const USUAL_JSON: [&str; 7] = ["crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"];

/// Where our drop-in for the main file `config` lies.
pub(crate) fn drop_in(config: &Path) -> PathBuf {
    config.with_file_name("containers.conf.d").join("99-vgpu.conf")
}

fn hooks_folder(config: &Path) -> PathBuf {
    config.with_file_name("oci").join("hooks.d")
}

pub(super) fn configure(wish: &Wish) -> Result<Changes, Error> {
    let path = drop_in(&wish.config);
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    let layers = toml::layers(&wish.config, &folder, ".conf", &path)?;
    let was_default = crate::files::read(&path)?.is_some_and(|text| is_default(&text));
    let hooks_folder = hooks_folder(&wish.config);
    let text = match &wish.hook {
        Some(_) => render_hooks(&layers, &hooks_folder),
        None => render(&layers, &wish.runtime, wish.default || was_default),
    };
    let drop_in = owned::write(&path, text, is_ours)?;
    hooks::beside(drop_in, &hooks_folder, wish.hook.as_deref())
}

pub(super) fn undo(config: &Path) -> Result<Changes, Error> {
    hooks::beside(owned::remove(&drop_in(config), is_ours)?, &hooks_folder(config), None)
}

/// Whether a drop-in was written by us.
pub(crate) fn is_ours(text: &str) -> bool {
    text.starts_with(&owned::mark(NAME))
}

/// Whether a drop-in makes our runtime the default.
pub(crate) fn is_default(text: &str) -> bool {
    let doc: Result<DocumentMut, _> = text.parse();
    doc.is_ok_and(|doc| toml::last(&[doc], &["engine", "runtime"]).and_then(Item::as_str) == Some(HANDLER))
}

fn render(layers: &[DocumentMut], runtime: &str, default: bool) -> String {
    let mut engine = Table::new();
    if default {
        engine.insert("runtime", value(HANDLER));
    }
    // With this Podman asks for JSON errors, and shows our one line instead of an exit status.
    let mut json = toml::last(layers, &["engine", "runtime_supports_json"]).map(toml::strings).unwrap_or_default();
    if json.is_empty() {
        json.extend(USUAL_JSON.map(str::to_owned));
    }
    if !json.iter().any(|name| name == HANDLER) {
        json.push(HANDLER.to_owned());
    }
    engine.insert("runtime_supports_json", value(Array::from_iter(json)));
    let mut runtimes = Table::new();
    runtimes.insert(HANDLER, value(Array::from_iter([runtime])));
    engine.insert("runtimes", Item::Table(runtimes));
    section(engine)
}

/// Podman documents two folders, and reads only the one in /usr/share unless told.
fn render_hooks(layers: &[DocumentMut], folder: &Path) -> String {
    let mut engine = Table::new();
    engine.insert("hooks_dir", value(hooks::folders(layers, &["engine", "hooks_dir"], folder)));
    section(engine)
}

fn section(engine: Table) -> String {
    let mut doc = DocumentMut::new();
    doc.insert("engine", Item::Table(engine));
    owned::header(NAME) + &doc.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "# Written by \"vgpu configure podman\"; \"vgpu configure podman --undo\" removes it.\n[engine]\n";

    #[test]
    fn drop_ins() {
        for (description, layers, default, expected) in [
            (
                "nothing said anywhere",
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
            let text = render(&[layers.parse().unwrap()], "/r", default);
            assert_eq!(text, format!("{HEADER}{expected}\n[engine.runtimes]\nvgpu = [\"/r\"]\n"), "{description}");
            assert!(is_ours(&text));
            assert_eq!(is_default(&text), default);
        }
    }
}
