//! Runtimes whose configuration is a main file and drop-ins that are merged into it key by key: one drop-in is ours, which adds a
//! runtime, or has the runtime read our hooks.

use super::error::Error;
use super::options::{HANDLER, Options};
use super::{hooks, managed, toml_layers};
use crate::file_change::FileChange;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

/// What differs between these runtimes.
#[derive(Debug)]
pub(crate) struct DropIn {
    /// What `vgpu configure` calls it.
    pub name: &'static str,
    /// Our drop-in, from the folder that the main file is in.
    pub path: &'static str,
    /// How the names of the drop-ins end that are read.
    pub suffix: &'static str,
    /// Where our hooks go, from the same folder. Each runtime has its own, so that each can be configured and undone by itself.
    pub hooks: &'static str,
    /// The names on the way to the section that we write into.
    pub section: &'static [&'static str],
    /// The key in it that names the default runtime.
    pub default: &'static str,
    /// The names on the way from it to our program.
    pub program: &'static [&'static str],
    /// Puts our runtime, of this path, into the section that is going to lie over the layers.
    pub register: fn(&[DocumentMut], &str, &mut Table),
}

impl DropIn {
    /// Where our drop-in for the main file `config` lies.
    pub fn path(&self, config: &Path) -> PathBuf {
        config.with_file_name(self.path)
    }

    pub(super) fn configure(&self, options: &Options) -> Result<Vec<FileChange>, Error> {
        let path = self.path(&options.config);
        let hooks_folder = options.config.with_file_name(self.hooks);
        let layers = toml_layers::layers(&options.config, path.parent().unwrap_or(Path::new("/")), self.suffix, &path)?;
        let was_default = crate::file_change::read(&path)?.is_some_and(|text| self.is_default(&text));
        let hooks_dir = options.hook.as_ref().map(|_| hooks_folder.as_path());
        let text = self.render(&layers, &options.runtime, options.default || (was_default && options.hook.is_none()), hooks_dir);
        hooks::beside(managed::write(&path, text, |text| self.is_ours(text))?, &hooks_folder, options.hook.as_deref())
    }

    pub(super) fn undo(&self, config: &Path) -> Result<Vec<FileChange>, Error> {
        let drop_in = managed::remove(&self.path(config), |text| self.is_ours(text))?;
        hooks::beside(drop_in, &config.with_file_name(self.hooks), None)
    }

    /// Whether a drop-in was written by us.
    pub fn is_ours(&self, text: &str) -> bool {
        text.starts_with(&managed::mark(self.name))
    }

    /// Whether a drop-in makes our runtime the default.
    pub fn is_default(&self, text: &str) -> bool {
        let doc: Result<DocumentMut, _> = text.parse();
        doc.is_ok_and(|doc| toml_layers::last(&[doc], &self.key(self.default)).and_then(Item::as_str) == Some(HANDLER))
    }

    fn key<'a>(&self, name: &'a str) -> Vec<&'a str> {
        self.section.iter().copied().chain([name]).collect()
    }

    /// The drop-in over `layers`. Only what is new is in it.
    pub(super) fn render(&self, layers: &[DocumentMut], runtime: &str, default: bool, hooks_dir: Option<&Path>) -> String {
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
        let (last, outer) = self.section.split_last().expect("a section has a name");
        let mut at = doc.as_table_mut();
        for name in outer {
            let mut table = Table::new();
            table.set_implicit(true);
            at = at.entry(name).or_insert(Item::Table(table)).as_table_mut().expect("it was made as one");
        }
        at.insert(last, Item::Table(section));
        managed::header(self.name) + &doc.to_string()
    }
}
