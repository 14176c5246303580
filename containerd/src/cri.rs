//! The CRI plugin's section with the runtime handlers, as containerd has it after its imports.

use toml_edit::{Item, Table, TableLike};

use crate::error::Error;
use crate::source::Source;
use crate::version::Version;

/// Returns the section that results from `files`: the main file and its imports, in the order of loading.
pub(crate) fn effective(version: Version, files: &[Source]) -> Result<Table, Error> {
    let mut section = Table::new();
    for file in files {
        let doc = file.parse()?;
        let Some(plugins) = doc.get("plugins") else { continue };
        let wrong_type = |key: &str| Error::Type { path: file.path.display().to_string(), key: key.to_owned(), expected: "a table" };
        let plugins = plugins.as_table_like().ok_or_else(|| wrong_type("plugins"))?;
        // A file of version 3 or 4 may import one of version 2, which containerd converts. The keys that are read here are the same in
        // all versions.
        let both = [Version::V2.cri_plugin(), Version::V3.cri_plugin()];
        let keys = if version.replaces_sections() { &both[..1] } else { &both[..] };
        for key in keys {
            let Some(item) = plugins.get(key) else { continue };
            let found = plain(item.as_table_like().ok_or_else(|| wrong_type(&format!("plugins.{key:?}")))?);
            if version.replaces_sections() {
                section = found;
            } else {
                merge(&mut section, found);
            }
        }
    }
    Ok(section)
}

/// Returns the runtime handlers of a section.
pub(crate) fn runtimes(section: &Table) -> Option<&Table> {
    section.get("containerd")?.as_table()?.get("runtimes")?.as_table()
}

/// Returns the handler of containers that request none; containerd's default is `runc`.
pub(crate) fn default_runtime(section: &Table) -> &str {
    section
        .get("containerd")
        .and_then(|c| c.get("default_runtime_name"))
        .and_then(|name| name.as_str())
        .filter(|name| !name.is_empty())
        .unwrap_or("runc")
}

/// Returns a copy without comments, inline tables and dotted keys, to be written into the drop-in.
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
    // A table that has only tables needs no header. An empty table would vanish without one.
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
