//! Checks how vgpu's handler is registered, for `vgpu check`.

use std::path::{Path, PathBuf};

use toml_edit::{Item, Table};

use crate::cri;
use crate::drop_in::{self, CONTAINER_ANNOTATIONS, Handler, POD_ANNOTATIONS};
use crate::error::Error;
use crate::source::Source;
use crate::version::Version;

/// The registration of a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// The handler's runtime; `None` if the handler is not registered.
    pub binary: Option<String>,
    /// Whether the handler is the default one.
    pub default: bool,
    /// The reasons for which the handler does not work.
    pub troubles: Vec<Trouble>,
}

/// A reason for which a registered handler does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The CRI plugin is disabled, as in Docker's package of containerd.
    #[error("disabled_plugins lists the CRI plugin, so Kubernetes cannot use this containerd")]
    CriDisabled,
    /// The drop-in exists and is not imported.
    #[error("{0} exists, and no import includes it")]
    NotImported(PathBuf),
    /// A file that is loaded later replaces the handler's section.
    #[error("{0} is loaded after the drop-in and replaces the section")]
    Shadowed(PathBuf),
    /// The copied section differs from that of the other files.
    #[error("{0} copies a section that has changed since")]
    Stale(PathBuf),
    /// The handler does not pass on all annotations.
    #[error("{0} lacks {1}")]
    Annotations(&'static str, String),
}

/// Inspects the handler `name`. `loaded` are the main file and its imports in the order of loading, including the drop-in if it is
/// imported. The drop-in has this `path`, and the text `ours` if it exists.
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
    found.troubles.extend(entry.into_iter().flat_map(missing_annotations));
    Ok(found)
}

/// Returns the annotations that a handler does not pass on.
fn missing_annotations(entry: &Table) -> impl Iterator<Item = Trouble> {
    let keys = [("pod_annotations", POD_ANNOTATIONS), ("container_annotations", CONTAINER_ANNOTATIONS)];
    keys.into_iter().filter_map(|(key, wanted)| {
        let list = entry.get(key).and_then(Item::as_array).map_or_else(Vec::new, drop_in::strings);
        let missing: Vec<_> = wanted.into_iter().filter(|pattern| !list.iter().any(|present| present == pattern)).collect();
        (!missing.is_empty()).then(|| Trouble::Annotations(key, missing.join(", ")))
    })
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
    fn registrations_with_each_trouble() {
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
    fn missing_annotations_are_listed() {
        let text = "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.vgpu]\npod_annotations = [\"nvidia.com/*\"]\noptions = { BinaryName = \"/r\" }\n";
        let found = look(&[Source::new("/e/c.toml", text)]);
        assert_eq!(found.troubles[0].to_string(), "pod_annotations lacks hami.io/*, volcano.sh/*, gpu-fraction*, gpu-memory");
        assert_eq!(found.troubles.len(), 2);
    }
}
