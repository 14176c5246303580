//! Turns references into the files that define the names.

use std::collections::BTreeSet;

use crate::graph::Graph;
use crate::modules::{Module, Modules};
use crate::scope::Import;

/// What a path of this crate leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item of a module. Items that macros generate are taken to be where the path says.
    Item(usize, String),
}

/// Names that are being looked up, so that imports that refer to themselves end.
type Pending = BTreeSet<(usize, String)>;

/// Builds the graph of imports between the files of `modules`.
///
/// A path leads to the file that defines its item, past re-exports. The modules on its way are no imports. An import of a module
/// counts where a name is taken from the module; if none is, as an import of the module's own file.
pub fn graph(modules: &Modules) -> Graph {
    let mut graph = Graph::default();
    for (index, module) in modules.0.iter().enumerate() {
        graph.add_file(&module.file);
        for path in &module.scope.paths {
            modules.add(&mut graph, module, modules.resolve(index, path, &mut Pending::new()));
        }
        for import in &module.scope.imports {
            let target = modules.resolve(index, &import.path, &mut Pending::new());
            if !(matches!(target, Some(Target::Module(_))) && modules.is_used_as_prefix(module, import)) {
                modules.add(&mut graph, module, target);
            }
        }
        for name in &module.scope.called_macros {
            modules.add(&mut graph, module, modules.textual_macro(index, name));
        }
    }
    graph
}

impl Modules {
    fn add(&self, graph: &mut Graph, from: &Module, target: Option<Target>) {
        match target {
            Some(Target::Item(to, name)) => graph.add_import(&from.file, &self.0[to].file, &name),
            Some(Target::Module(to)) => graph.add_import(&from.file, &self.0[to].file, "the module itself"),
            None => {}
        }
    }

    /// Returns whether names are taken from the imported module, and nothing but that is done with it.
    fn is_used_as_prefix(&self, module: &Module, import: &Import) -> bool {
        !import.is_public
            && import.name.as_ref().is_some_and(|name| {
                let is_prefix = |path: &Vec<String>| path.len() > 1 && path[0] == *name;
                module.scope.paths.iter().any(is_prefix) || module.scope.imports.iter().any(|other| is_prefix(&other.path))
            })
    }

    /// Resolves a path in the code of a module. `None`: it leads to another crate or to a name that is not global.
    fn resolve(&self, from: usize, path: &[String], pending: &mut Pending) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(self.0[from].root),
            "self" => Target::Module(from),
            "super" => Target::Module(self.0[from].parent?),
            name => self.lookup(from, name, pending)?,
        };
        for segment in rest {
            let Target::Module(module) = target else { break };
            target = match segment.as_str() {
                "self" => Target::Module(module),
                "super" => Target::Module(self.0[module].parent?),
                name => self.lookup(module, name, pending).unwrap_or_else(|| Target::Item(module, name.to_owned())),
            };
        }
        Some(target)
    }

    /// Looks a name up in the scope of a module: its modules, items, imports, exported macros and globs.
    fn lookup(&self, module: usize, name: &str, pending: &mut Pending) -> Option<Target> {
        let Module { children, scope, root, .. } = &self.0[module];
        if let Some(&child) = children.get(name) {
            return Some(Target::Module(child));
        }
        if scope.items.contains(name) || scope.macros.contains(name) {
            return Some(Target::Item(module, name.to_owned()));
        }
        if !pending.insert((module, name.to_owned())) {
            return None;
        }
        let named = scope.imports.iter().filter(|import| import.name.as_deref() == Some(name));
        let found = named.map(|import| self.resolve(module, &import.path, pending)).find(Option::is_some).flatten();
        let found = found.or_else(|| if *root == module { self.exported_macro(module, name) } else { None });
        let found = found.or_else(|| self.lookup_in_globs(module, name, pending));
        pending.remove(&(module, name.to_owned()));
        found
    }

    fn lookup_in_globs(&self, module: usize, name: &str, pending: &mut Pending) -> Option<Target> {
        self.0[module].scope.imports.iter().filter(|import| import.name.is_none()).find_map(|glob| {
            match self.resolve(module, &glob.path, pending)? {
                Target::Module(other) => self.lookup(other, name, pending),
                Target::Item(..) => None,
            }
        })
    }

    fn exported_macro(&self, root: usize, name: &str) -> Option<Target> {
        let defining = |module: &Module| module.root == root && module.scope.exported_macros.contains(name);
        Some(Target::Item(self.0.iter().position(defining)?, name.to_owned()))
    }

    /// Resolves a macro called by name alone, which may be in scope by `#[macro_use]` or by the order of the text.
    fn textual_macro(&self, from: usize, name: &str) -> Option<Target> {
        if let Some(target) = self.lookup(from, name, &mut Pending::new()) {
            return matches!(target, Target::Item(..)).then_some(target);
        }
        let mut ancestor = self.0[from].parent;
        while let Some(module) = ancestor {
            if self.0[module].scope.macros.contains(name) {
                return Some(Target::Item(module, name.to_owned()));
            }
            ancestor = self.0[module].parent;
        }
        let defining = |module: &Module| module.root == self.0[from].root && module.scope.macros.contains(name);
        Some(Target::Item(self.0.iter().position(defining)?, name.to_owned()))
    }
}
