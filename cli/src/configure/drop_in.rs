//! Drop-ins for runtimes that merge them into their main file key by key. vgpu's drop-in adds a runtime, or the folder of
//! vgpu's hooks.

use super::error::Error;
use super::options::{HANDLER, Options};
use super::{hooks, managed, toml_layers};
use crate::file_change::FileChange;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

/// Differences between these runtimes.
#[derive(Debug)]
pub struct DropIn {
    /// Name of the runtime for `vgpu configure`.
    pub name: &'static str,
    /// Path of vgpu's drop-in, relative to the main file's folder.
    pub path: &'static str,
    /// Suffix of the drop-ins that the runtime reads.
    pub suffix: &'static str,
    /// Folder of vgpu's hooks, relative to the main file's folder. Each runtime has its own and can be configured alone.
    pub hooks: &'static str,
    /// Path of the section that vgpu writes to.
    pub section: &'static [&'static str],
    /// Key in the section that names the default runtime.
    pub default: &'static str,
    /// Path from the section to vgpu's program.
    pub program: &'static [&'static str],
    /// Adds a runtime with this program to the section that is merged over the layers.
    pub register: fn(&[DocumentMut], &str, &mut Table),
}

impl DropIn {
    /// Returns the path of the drop-in for the main file `config`.
    #[must_use]
    pub fn path(&self, config: &Path) -> PathBuf {
        config.with_file_name(self.path)
    }

    /// Returns the changes that register vgpu.
    pub(super) fn configure(&self, options: &Options) -> Result<Vec<FileChange>, Error> {
        let path = self.path(&options.config);
        let hooks_folder = options.config.with_file_name(self.hooks);
        let layers = toml_layers::load(&options.config, path.parent().unwrap_or(Path::new("/")), self.suffix, &path)?;
        let was_default = crate::file_change::read(&path)?.is_some_and(|text| self.is_default(&text));
        let hooks_dir = options.hook.as_ref().map(|_| hooks_folder.as_path());
        let text = self.render(&layers, &options.runtime, options.default || (was_default && options.hook.is_none()), hooks_dir);
        hooks::with_drop_in(managed::write(&path, text, |text| self.is_ours(text))?, &hooks_folder, options.hook.as_deref())
    }

    /// Returns the changes that remove vgpu.
    pub(super) fn undo(&self, config: &Path) -> Result<Vec<FileChange>, Error> {
        let drop_in = managed::remove(&self.path(config), |text| self.is_ours(text))?;
        hooks::with_drop_in(drop_in, &config.with_file_name(self.hooks), None)
    }

    /// Returns whether vgpu wrote a drop-in.
    #[must_use]
    pub fn is_ours(&self, text: &str) -> bool {
        text.starts_with(&managed::marker(self.name))
    }

    /// Returns whether a drop-in makes vgpu the default runtime.
    #[must_use]
    pub fn is_default(&self, text: &str) -> bool {
        let doc: Result<DocumentMut, _> = text.parse();
        doc.is_ok_and(|doc| toml_layers::lookup(&[doc], &self.key(self.default)).and_then(Item::as_str) == Some(HANDLER))
    }

    /// Returns the path of a key in the section.
    fn key<'a>(&self, name: &'a str) -> Vec<&'a str> {
        self.section.iter().copied().chain([name]).collect()
    }

    /// Returns the drop-in to merge over `layers`. It contains new keys only.
    ///
    /// # Panics
    /// Never: the path of the section is not empty, and its tables are new.
    #[must_use]
    pub fn render(&self, layers: &[DocumentMut], runtime: &str, default: bool, hooks_dir: Option<&Path>) -> String {
        let mut section = Table::new();
        if default {
            section.insert(self.default, value(HANDLER));
        }
        match hooks_dir {
            Some(folder) => {
                section.insert("hooks_dir", value(hooks::folders(layers, &self.key("hooks_dir"), folder)));
            }
            None => (self.register)(layers, runtime, &mut section),
        }
        let only_tables = section.iter().all(|(_, item)| item.is_table());
        section.set_implicit(only_tables);
        let mut doc = DocumentMut::new();
        let (last, outer) = self.section.split_last().expect("the path of a section is not empty");
        let mut table = doc.as_table_mut();
        for name in outer {
            let mut new = Table::new();
            new.set_implicit(true);
            table = table.entry(name).or_insert(Item::Table(new)).as_table_mut().expect("the entry was created as a table");
        }
        table.insert(last, Item::Table(section));
        managed::header(self.name) + &doc.to_string()
    }
}
