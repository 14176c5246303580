//! The section of the CRI plugin that holds the runtime handlers, as containerd sees it after its imports.

use crate::{Error, Source, Version};
use toml_edit::{Item, Table, TableLike};

/// The section after `files` (the main file first, then what it imports, in the order of loading).
pub(crate) fn effective(version: Version, files: &[Source]) -> Result<Table, Error> {
    let mut section = Table::new();
    for file in files {
        let doc = file.parse()?;
        let Some(plugins) = doc.get("plugins") else { continue };
        let wrong = |key: &str| Error::Type { path: file.path.display().to_string(), key: key.to_owned(), expected: "a table" };
        let plugins = plugins.as_table_like().ok_or_else(|| wrong("plugins"))?;
        // A file of version 3 or 4 may import one of version 2, which containerd converts. What we look at in the
        // section has the same shape in all.
        let both = [Version::V2.cri_plugin(), Version::V3.cri_plugin()];
        let keys = if version.replaces_sections() { &both[..1] } else { &both[..] };
        for key in keys {
            let Some(item) = plugins.get(key) else { continue };
            let found = plain(item.as_table_like().ok_or_else(|| wrong(&format!("plugins.{key:?}")))?);
            if version.replaces_sections() {
                section = found;
            } else {
                merge(&mut section, found);
            }
        }
    }
    Ok(section)
}

/// The runtime handlers of a section.
pub(crate) fn runtimes(section: &Table) -> Option<&Table> {
    section.get("containerd")?.as_table()?.get("runtimes")?.as_table()
}

/// The handler that containers get which ask for none; `runc` is containerd's own default.
pub(crate) fn default_runtime(section: &Table) -> &str {
    section
        .get("containerd")
        .and_then(|c| c.get("default_runtime_name"))
        .and_then(|name| name.as_str())
        .filter(|name| !name.is_empty())
        .unwrap_or("runc")
}

/// A copy without comments, inline tables and dotted keys: it is about to be written as ours.
fn plain(table: &dyn TableLike) -> Table {
    let mut out = Table::new();
    for (key, item) in table.iter() {
        match item {
            Item::ArrayOfTables(list) => {
                let copies = list.iter().map(|table| plain(table)).collect::<toml_edit::ArrayOfTables>();
                out.insert(key, Item::ArrayOfTables(copies));
            }
            item => match (item.as_table_like(), item.as_value()) {
                (Some(inner), _) => {
                    out.insert(key, Item::Table(plain(inner)));
                }
                (None, Some(value)) => {
                    let mut value = value.clone();
                    value.decor_mut().clear();
                    out.insert(key, Item::Value(value));
                }
                (None, None) => {}
            },
        }
    }
    // A table of tables only needs no header of its own; an empty one would vanish without it.
    out.set_implicit(!out.is_empty() && out.iter().all(|(_, item)| item.is_table()));
    out
}

fn merge(into: &mut Table, from: Table) {
    for (key, item) in from {
        match (into.get_mut(&key).and_then(Item::as_table_mut), item) {
            (Some(present), Item::Table(new)) => merge(present, new),
            (_, item) => {
                into.insert(&key, item);
            }
        }
    }
}
