//! What a configuration says about our handler, for `vgpu check`.

use crate::{CONTAINER_ANNOTATIONS, Error, Handler, POD_ANNOTATIONS, Source, Version, cri, drop_in};
use std::path::{Path, PathBuf};
use toml_edit::Item;

/// How the handler is registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// The runtime behind the handler; `None` where the handler is not registered.
    pub binary: Option<String>,
    /// Whether it is the default handler.
    pub default: bool,
    /// What keeps it from working as meant.
    pub troubles: Vec<Trouble>,
}

/// Something in a configuration that keeps a registered handler from working.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The CRI plugin is switched off, as Docker's package of containerd does.
    #[error("the CRI plugin is in disabled_plugins, so Kubernetes cannot use this containerd")]
    CriDisabled,
    /// The drop-in exists, and nothing imports it.
    #[error("{0} is there and no import brings it in")]
    NotImported(PathBuf),
    /// Another file, loaded later, replaces the section that the handler is in.
    #[error("{0} is loaded after the drop-in and replaces the section")]
    Shadowed(PathBuf),
    /// The copied section is no longer what the other files say.
    #[error("{0} copies a section that has changed since")]
    Stale(PathBuf),
    /// The handler does not let our annotations through.
    #[error("{0} lacks {1}")]
    Annotations(&'static str, String),
}

/// Looks for the handler `name`. `loaded` is the main file and what it imports in the order of loading, our drop-in
/// (which lies at `path`, with text `ours` if it exists) included where it is imported.
pub fn inspect(loaded: &[Source], path: &Path, ours: Option<&str>, name: &str) -> Result<Registration, Error> {
    let mut found = Registration::default();
    let Some(main) = loaded.first() else { return Ok(found) };
    let doc = main.parse()?;
    let Some(version) = Version::declared(&doc, main)? else { return Ok(found) };
    let section = cri::effective(version, loaded)?;
    let entry = cri::runtimes(&section).and_then(|all| all.get(name)).and_then(Item::as_table);
    found.default = cri::default_runtime(&section) == name;
    found.binary = entry.and_then(|entry| entry.get("options")?.get("BinaryName")?.as_str()).map(str::to_owned);

    let disabled = doc.get("disabled_plugins").and_then(Item::as_array).map_or_else(Vec::new, drop_in::strings);
    if disabled.iter().any(|id| id == "cri" || id == version.cri_plugin() || id == "io.containerd.grpc.v1.cri") {
        found.troubles.push(Trouble::CriDisabled);
    }
    let position = loaded.iter().position(|file| file.path == path);
    match (position, ours) {
        (None, Some(text)) if drop_in::is_ours(text) => found.troubles.push(Trouble::NotImported(path.to_owned())),
        (Some(at), Some(text)) if version.replaces_sections() => {
            let after = loaded[at + 1..].iter();
            for file in after {
                if !cri::effective(version, std::slice::from_ref(file))?.is_empty() {
                    found.troubles.push(Trouble::Shadowed(file.path.clone()));
                }
            }
            let others: Vec<_> = loaded.iter().filter(|file| file.path != path).cloned().collect();
            if let Some(binary) = &found.binary {
                let handler = Handler { name, binary, default: found.default };
                if found.troubles.is_empty() && drop_in::render(version, &others, handler)? != text {
                    found.troubles.push(Trouble::Stale(path.to_owned()));
                }
            }
        }
        _ => {}
    }
    if let Some(entry) = entry {
        for (key, wanted) in [("pod_annotations", POD_ANNOTATIONS), ("container_annotations", CONTAINER_ANNOTATIONS)] {
            let list = entry.get(key).and_then(Item::as_array).map_or_else(Vec::new, drop_in::strings);
            let missing: Vec<_> = wanted.into_iter().filter(|one| !list.iter().any(|present| present == one)).collect();
            if !missing.is_empty() {
                found.troubles.push(Trouble::Annotations(key, missing.join(", ")));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "version = 2\nimports = [\"/e/conf.d/*.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/a\"\n";
    const PATH: &str = "/e/conf.d/99-vgpu.toml";

    fn ours(main: &str) -> Source {
        let handler = Handler { name: "vgpu", binary: "/r", default: false };
        Source::new(PATH, drop_in::render(Version::V2, &[Source::new("/e/c.toml", main)], handler).unwrap())
    }

    fn look(files: &[Source]) -> Registration {
        let text = files.iter().find(|f| f.path == Path::new(PATH)).map(|f| f.text.as_str());
        inspect(files, Path::new(PATH), text, "vgpu").unwrap()
    }

    #[test]
    fn each_state_is_told_apart() {
        let main = Source::new("/e/c.toml", MAIN);
        let other = Source::new("/e/conf.d/zz.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/b\"\n");
        let changed = Source::new("/e/c.toml", MAIN.replace("\"/a\"", "\"/b\""));
        let disabled =
            Source::new("/e/c.toml", MAIN.to_owned().replace("imports", "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\nimports"));
        let good = Registration { binary: Some("/r".into()), ..Default::default() };
        let with = |trouble| Registration { troubles: vec![trouble], ..good.clone() };

        assert_eq!(look(&[main.clone(), ours(MAIN)]), good);
        assert_eq!(look(&[changed, ours(MAIN)]), with(Trouble::Stale(PATH.into())));
        assert_eq!(look(&[disabled, ours(MAIN)]), with(Trouble::CriDisabled));
        assert_eq!(
            look(&[main.clone(), ours(MAIN), other.clone()]),
            Registration { troubles: vec![Trouble::Shadowed(other.path)], ..Default::default() }
        );
        assert_eq!(look(std::slice::from_ref(&main)), Registration::default());
        assert_eq!(
            inspect(&[main], Path::new(PATH), Some(&ours(MAIN).text), "vgpu").unwrap().troubles,
            [Trouble::NotImported(PATH.into())]
        );
    }

    #[test]
    fn missing_annotations_are_named() {
        let text = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.vgpu]\npod_annotations = [\"nvidia.com/*\"]\noptions = { BinaryName = \"/r\" }\n";
        let found = look(&[Source::new("/e/c.toml", text)]);
        assert_eq!(found.troubles[0].to_string(), "pod_annotations lacks hami.io/*, volcano.sh/*, gpu-fraction*, gpu-memory");
        assert_eq!(found.troubles.len(), 2);
    }
}
