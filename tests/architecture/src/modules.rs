//! The module tree of a crate's targets.

use std::collections::BTreeMap;

use syn::Item;

use crate::scope::Scope;
use crate::syntax::{is_test_only, item_attributes, path_attribute};

/// The sources of one crate: text by path below `src`.
pub type Sources = BTreeMap<String, String>;

/// Reasons why the module tree cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not valid Rust.
    #[error("{file}: {error}")]
    Syntax {
        /// The path below `src`.
        file: String,
        /// Where and why.
        error: syn::Error,
    },
    /// No file has the name that a `mod` declaration asks for.
    #[error("{file}: `mod {name}`: expected {expected}")]
    Missing {
        /// The file with the declaration.
        file: String,
        /// The module.
        name: String,
        /// The paths that were tried.
        expected: String,
    },
}

/// One module: a file, or an inline `mod` in a file.
#[derive(Debug)]
pub struct Module {
    /// The path of its file below `src`.
    pub file: String,
    /// The module that it is declared in; `None` for the root of a target.
    pub parent: Option<usize>,
    /// The root of its target.
    pub root: usize,
    /// The modules that it declares, test-only ones left out.
    pub children: BTreeMap<String, usize>,
    /// What it defines and refers to.
    pub scope: Scope,
}

/// All modules of a crate's targets; modules refer to each other by index.
#[derive(Debug, Default)]
pub struct Modules(pub Vec<Module>);

impl Modules {
    /// Builds the trees of the targets in `sources`: `lib.rs`, `main.rs` and every program below `bin`.
    ///
    /// # Errors
    ///
    /// A file that is missing or not valid Rust.
    pub fn of(sources: &Sources) -> Result<Self, Error> {
        let mut tree = Builder { sources, modules: vec![] };
        for file in sources.keys().filter(|file| is_target(file)) {
            let root = tree.modules.len();
            tree.file(file, folder(file), None, root)?;
        }
        Ok(Self(tree.modules))
    }
}

fn is_target(file: &str) -> bool {
    let bin = file.strip_prefix("bin/");
    matches!(file, "lib.rs" | "main.rs")
        || bin.is_some_and(|name| !name.contains('/') || name.split_once('/').is_some_and(|it| it.1 == "main.rs"))
}

/// Returns the folder of a file; empty, or with a slash at the end.
fn folder(file: &str) -> &str {
    file.rfind('/').map_or("", |slash| &file[..=slash])
}

struct Builder<'a> {
    sources: &'a Sources,
    modules: Vec<Module>,
}

impl Builder<'_> {
    /// Adds the module in `file`, whose own modules are in `below`.
    fn file(&mut self, file: &str, below: &str, parent: Option<usize>, root: usize) -> Result<usize, Error> {
        let parsed = syn::parse_file(&self.sources[file]).map_err(|error| Error::Syntax { file: file.to_owned(), error })?;
        self.module(file, below, parent, root, &parsed.items)
    }

    fn module(&mut self, file: &str, below: &str, parent: Option<usize>, root: usize, items: &[Item]) -> Result<usize, Error> {
        let index = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, root, children: BTreeMap::new(), scope: Scope::of(items) });
        for item in items {
            if let Item::Mod(child) = item
                && !is_test_only(item_attributes(item))
            {
                let name = child.ident.to_string();
                let added = match &child.content {
                    Some((_, items)) => self.module(file, &format!("{below}{name}/"), Some(index), root, items)?,
                    None => self.declared(file, below, child, index, root)?,
                };
                self.modules[index].children.insert(name, added);
            }
        }
        Ok(index)
    }

    /// Adds the module of a `mod name;` declaration.
    fn declared(&mut self, file: &str, below: &str, child: &syn::ItemMod, parent: usize, root: usize) -> Result<usize, Error> {
        let name = child.ident.to_string();
        let candidates = match path_attribute(&child.attrs) {
            // A file of another crate, which is checked there.
            Some(path) if path.matches("../").count() > folder(file).matches('/').count() => {
                return self.module(file, below, Some(parent), root, &[]);
            }
            Some(path) => vec![format!("{}{path}", folder(file))],
            None => vec![format!("{below}{name}.rs"), format!("{below}{name}/mod.rs")],
        };
        let Some(found) = candidates.iter().find(|path| self.sources.contains_key(*path)) else {
            return Err(Error::Missing { file: file.to_owned(), name, expected: candidates.join(" or ") });
        };
        let own = if found.ends_with("/mod.rs") { folder(found).to_owned() } else { format!("{}/", found.trim_end_matches(".rs")) };
        self.file(found, &own, Some(parent), root)
    }
}
