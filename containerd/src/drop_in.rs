//! The drop-in: vgpu's handler, and for version 2 a copy of the section around it.

use toml_edit::{Array, DocumentMut, Item, Table, value};

use crate::cri;
use crate::error::Error;
use crate::source::Source;
use crate::version::Version;

/// Pod annotations that reach the bundle: the requests of vgpu and HAMi, and the decisions of HAMi, Volcano and KAI. containerd matches
/// with Go's `path.Match`, whose `*` does not match `/`.
pub const POD_ANNOTATIONS: [&str; 5] = ["nvidia.com/*", "hami.io/*", "volcano.sh/*", "gpu-fraction*", "gpu-memory"];

/// Container annotations that reach the bundle.
pub const CONTAINER_ANNOTATIONS: [&str; 5] = POD_ANNOTATIONS;

/// Beginning of every drop-in that vgpu writes. A file without it is not changed.
pub const MARK: &str = "# Written by \"vgpu configure containerd\"";

const RUNC_V2: &str = "io.containerd.runc.v2";

/// A runtime handler to register.
#[derive(Debug, Clone, Copy)]
pub struct Handler<'a> {
    /// The name for a RuntimeClass.
    pub name: &'a str,
    /// The absolute path of the OCI runtime.
    pub binary: &'a str,
    /// Whether this is the default handler.
    pub default: bool,
}

/// Returns whether vgpu has written this drop-in.
pub fn is_ours(text: &str) -> bool {
    text.starts_with(MARK)
}

/// Returns the text of the drop-in. `others` are the main file and its imports in the order of loading, without the drop-in itself.
///
/// The handler inherits the options of the default one (above all `SystemdCgroup`: with a wrong value, the kubelet and runc disagree about
/// cgroups), and the annotations that the default one passes on.
pub fn render(version: Version, others: &[Source], handler: Handler<'_>) -> Result<String, Error> {
    let section = cri::effective(version, others)?;
    let entry = entry(&section, handler);
    let mut out = if version.replaces_sections() { section } else { Table::new() };
    if out.is_empty() {
        out.set_implicit(true);
    }
    let containerd = child(&mut out, "containerd");
    if handler.default {
        containerd.insert("default_runtime_name", value(handler.name));
    }
    let runtimes = child(containerd, "runtimes");
    if version.replaces_sections() && runtimes.is_empty() {
        child(runtimes, "runc").insert("runtime_type", value(RUNC_V2));
    }
    runtimes.insert(handler.name, Item::Table(entry));

    let mut doc = DocumentMut::new();
    doc["version"] = value(version.number());
    let mut plugins = Table::new();
    plugins.set_implicit(true);
    plugins.insert(version.cri_plugin(), Item::Table(out));
    doc.insert("plugins", Item::Table(plugins));
    Ok(header(version) + &doc.to_string())
}

fn header(version: Version) -> String {
    let mut text = format!("{MARK}; \"vgpu configure containerd --undo\" removes it.\n");
    if version.replaces_sections() {
        text += "# containerd 1.x takes a plugin's whole section from the last file that has it, so this is a copy with the\n\
                 # handler added. After a change to the section elsewhere, run \"vgpu configure containerd\" again.\n";
    }
    text
}

/// Returns vgpu's handler as a copy of the default one, if that is of runc's type.
fn entry(section: &Table, handler: Handler<'_>) -> Table {
    let runtimes = cri::runtimes(section);
    let default = match cri::default_runtime(section) {
        name if name == handler.name => "runc",
        name => name,
    };
    let is_runc = |table: &&Table| table.get("runtime_type").is_none_or(|t| t.as_str() == Some(RUNC_V2));
    let template = [default, "runc"].iter().filter_map(|name| runtimes?.get(name)?.as_table()).find(is_runc);
    let mut entry = template.cloned().unwrap_or_default();
    entry.set_implicit(false);
    entry.insert("runtime_type", value(RUNC_V2));
    for (key, wanted) in [("pod_annotations", POD_ANNOTATIONS), ("container_annotations", CONTAINER_ANNOTATIONS)] {
        let mut list: Vec<String> = entry.get(key).and_then(Item::as_array).map_or_else(Vec::new, strings);
        for pattern in wanted {
            if !list.iter().any(|present| present == pattern) {
                list.push(pattern.to_owned());
            }
        }
        entry.insert(key, value(Array::from_iter(list)));
    }
    child(&mut entry, "options").insert("BinaryName", value(handler.binary));
    entry
}

pub(crate) fn strings(list: &Array) -> Vec<String> {
    list.iter().filter_map(|v| v.as_str()).map(str::to_owned).collect()
}

/// Returns the table at `key`, created if it does not exist.
fn child<'a>(table: &'a mut Table, key: &str) -> &'a mut Table {
    let item = table.entry(key).or_insert_with(|| {
        let mut new = Table::new();
        new.set_implicit(true);
        Item::Table(new)
    });
    if !item.is_table() {
        *item = Item::Table(Table::new());
    }
    item.as_table_mut().expect("it was made a table above")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLER: Handler<'_> = Handler { name: "vgpu", binary: "/usr/bin/vgpu-runtime", default: false };
    const V2: &str = "plugins.\"io.containerd.grpc.v1.cri\"";
    const V3: &str = "plugins.\"io.containerd.cri.v1.runtime\"";

    fn drop_in(version: Version, files: &[&str], handler: Handler<'_>) -> DocumentMut {
        let files: Vec<_> = files.iter().map(|text| Source::new("/c.toml", *text)).collect();
        let text = render(version, &files, handler).unwrap();
        assert!(is_ours(&text));
        text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn section(doc: &DocumentMut, version: Version) -> &Item {
        &doc["plugins"][version.cri_plugin()]
    }

    #[test]
    fn text_for_an_empty_configuration() {
        let text = render(Version::V3, &[], HANDLER).unwrap();
        let expected = format!(
            "{MARK}; \"vgpu configure containerd --undo\" removes it.\nversion = 3\n\n\
             [{V3}.containerd.runtimes.vgpu]\n\
             runtime_type = \"io.containerd.runc.v2\"\n\
             pod_annotations = [\"nvidia.com/*\", \"hami.io/*\", \"volcano.sh/*\", \"gpu-fraction*\", \"gpu-memory\"]\n\
             container_annotations = [\"nvidia.com/*\", \"hami.io/*\", \"volcano.sh/*\", \"gpu-fraction*\", \"gpu-memory\"]\n\n\
             [{V3}.containerd.runtimes.vgpu.options]\n\
             BinaryName = \"/usr/bin/vgpu-runtime\"\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn version_2_copies_the_last_section() {
        let main = format!(
            "version = 2\n[{V2}]\nsandbox_image = \"pause:1\" # pinned\n[{V2}.cni]\nbin_dir = \"/usr/lib/cni\"\n\
             [{V2}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[{V2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
        );
        let doc = drop_in(Version::V2, &[&main], HANDLER);
        let cri = section(&doc, Version::V2);
        assert_eq!(cri["sandbox_image"].as_str(), Some("pause:1"));
        assert_eq!(cri["cni"]["bin_dir"].as_str(), Some("/usr/lib/cni"));
        let runtimes = &cri["containerd"]["runtimes"];
        assert_eq!(runtimes["runc"]["options"]["SystemdCgroup"].as_bool(), Some(true));
        assert_eq!(runtimes["vgpu"]["options"]["SystemdCgroup"].as_bool(), Some(true));
        assert_eq!(runtimes["vgpu"]["options"]["BinaryName"].as_str(), Some("/usr/bin/vgpu-runtime"));

        let nvidia = format!("version = 2\n[{V2}.containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n");
        let doc = drop_in(Version::V2, &[&main, &nvidia], HANDLER);
        let cri = section(&doc, Version::V2);
        assert!(cri.get("cni").is_none(), "containerd 1.x drops it, too");
        assert!(cri["containerd"]["runtimes"].get("nvidia").is_some());
    }

    #[test]
    fn version_2_keeps_the_built_in_runc() {
        let main = format!("version = 2\n[{V2}.cni]\nbin_dir = \"/usr/lib/cni\"\n");
        let doc = drop_in(Version::V2, &[&main], HANDLER);
        assert_eq!(section(&doc, Version::V2)["containerd"]["runtimes"]["runc"]["runtime_type"].as_str(), Some(RUNC_V2));
    }

    #[test]
    fn later_versions_have_only_the_handler() {
        for version in [Version::V3, Version::V4] {
            let main = format!(
                "version = {}\n[{V3}]\nenable_selinux = true\n[{V3}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n",
                version.number()
            );
            let doc = drop_in(version, &[&main], HANDLER);
            assert_eq!(doc["version"].as_integer(), Some(version.number()), "not above the main file's");
            let cri = section(&doc, version);
            assert!(cri.get("enable_selinux").is_none());
            let runtimes = cri["containerd"]["runtimes"].as_table().unwrap();
            assert_eq!(runtimes.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["vgpu"]);
            assert_eq!(runtimes["vgpu"]["options"]["SystemdCgroup"].as_bool(), Some(true));
        }
    }

    #[test]
    fn the_handler_copies_the_default_one_of_runcs_type() {
        for (description, default, kind, cgroup) in [
            ("NVIDIA's runtime", "nvidia", RUNC_V2, Some(true)),
            ("another type, whose options do not apply to runc", "kata", "io.containerd.kata.v2", None),
            ("vgpu itself, from a hand-written file", "vgpu", RUNC_V2, None),
        ] {
            let main = format!(
                "version = 2\n[{V2}.containerd]\ndefault_runtime_name = \"{default}\"\n\
                 [{V2}.containerd.runtimes]\n{default} = {{ runtime_type = \"{kind}\", pod_annotations = [\"x/*\"], options.SystemdCgroup = true }}\n"
            );
            let doc = drop_in(Version::V2, &[&main], HANDLER);
            let ours = &section(&doc, Version::V2)["containerd"]["runtimes"]["vgpu"];
            assert_eq!(ours["options"].get("SystemdCgroup").and_then(Item::as_bool), cgroup, "{description}");
            assert_eq!(ours["runtime_type"].as_str(), Some(RUNC_V2));
            let annotations = strings(ours["pod_annotations"].as_array().unwrap());
            assert_eq!(annotations.contains(&"x/*".to_owned()), cgroup.is_some(), "{description}");
            assert!(annotations.contains(&"nvidia.com/*".to_owned()));
        }
    }

    #[test]
    fn vgpu_as_the_default_handler() {
        for version in [Version::V2, Version::V3, Version::V4] {
            let doc = drop_in(version, &[], Handler { default: true, ..HANDLER });
            assert_eq!(section(&doc, version)["containerd"]["default_runtime_name"].as_str(), Some("vgpu"));
        }
    }

    #[test]
    fn version_3_may_import_version_2() {
        let old = format!("version = 2\n[{V2}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n");
        let doc = drop_in(Version::V3, &["version = 3\n", &old], HANDLER);
        let ours = &section(&doc, Version::V3)["containerd"]["runtimes"]["vgpu"];
        assert_eq!(ours["options"]["SystemdCgroup"].as_bool(), Some(true));
    }
}
