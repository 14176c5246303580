//! The names that a driver exports.

use std::collections::BTreeSet;
use std::path::Path;

use object::{Object, ObjectSymbol};

/// What one driver exports.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Names of `libcuda.so.1`.
    pub cuda: BTreeSet<String>,
    /// Names of `libnvidia-ml.so.1`.
    pub nvml: BTreeSet<String>,
}

impl Driver {
    /// Reads a folder's libraries, or its lists of names.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let either = |library: &str, list: &str| {
            let library = folder.join(library);
            if library.exists() { exports(&library) } else { listed(&folder.join(list)) }
        };
        Ok(Self { cuda: either("libcuda.so.1", "cuda.txt")?, nvml: either("libnvidia-ml.so.1", "nvml.txt")? })
    }

    /// All names, each with the library that it is of.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.cuda.iter().chain(&self.nvml)
    }

    /// Whether either library exports this name.
    pub fn has(&self, name: &str) -> bool {
        self.cuda.contains(name) || self.nvml.contains(name)
    }
}

/// The names that a shared library defines for others, as far as they are CUDA's or NVML's.
pub fn exports(path: &Path) -> Result<BTreeSet<String>, String> {
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| problem(&error))?;
    let file = object::File::parse(&*bytes).map_err(|error| problem(&error))?;
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition).filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    let names: BTreeSet<String> = defined.filter(|name| name.starts_with("cu") || name.starts_with("nvml")).collect();
    if names.is_empty() { Err(problem(&"exports neither CUDA's nor NVML's functions")) } else { Ok(names) }
}

/// A kept list: one name a line.
fn listed(path: &Path) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_such_names_is_refused() {
        let this = std::env::current_exe().unwrap();
        let problem = exports(&this).unwrap_err();
        assert!(problem.contains("exports neither"), "{problem}");
        assert!(exports(Path::new("/nonexistent")).is_err());
    }
}
