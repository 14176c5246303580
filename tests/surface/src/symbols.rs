//! Names exported by a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use object::{Object, ObjectSymbol};

/// Exports of one driver.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Names exported by `libcuda.so.1`.
    pub cuda: BTreeSet<String>,
    /// Names exported by `libnvidia-ml.so.1`.
    pub nvml: BTreeSet<String>,
    /// CUDA versions that brought a name, of those that the list of names says.
    pub since: BTreeMap<String, String>,
}

impl Driver {
    /// Reads the libraries or the lists of names in a folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let either = |library: &str, list: &str| {
            let library = folder.join(library);
            if library.exists() { exported_names(&library).map(|names| (names, BTreeMap::new())) } else { read_list(&folder.join(list)) }
        };
        let ((cuda, mut since), (nvml, since_nvml)) = (either("libcuda.so.1", "cuda.txt")?, either("libnvidia-ml.so.1", "nvml.txt")?);
        since.extend(since_nvml);
        Ok(Self { cuda, nvml, since })
    }

    /// Adds the names of another driver.
    pub fn add(&mut self, other: Self) {
        self.cuda.extend(other.cuda);
        self.nvml.extend(other.nvml);
        self.since.extend(other.since);
    }

    /// Iterates over the names of both libraries.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.cuda.iter().chain(&self.nvml)
    }

    /// Returns whether either library exports this name.
    pub fn exports(&self, name: &str) -> bool {
        self.cuda.contains(name) || self.nvml.contains(name)
    }
}

/// Returns the CUDA and NVML functions that a shared library exports.
pub fn exported_names(path: &Path) -> Result<BTreeSet<String>, String> {
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| problem(&error))?;
    let file = object::File::parse(&*bytes).map_err(|error| problem(&error))?;
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition).filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    let names: BTreeSet<String> = defined.filter(|name| name.starts_with("cu") || name.starts_with("nvml")).collect();
    if names.is_empty() { Err(problem(&"exports neither CUDA nor NVML functions")) } else { Ok(names) }
}

/// Names, and the CUDA versions that brought them.
type List = (BTreeSet<String>, BTreeMap<String, String>);

/// Reads a list with one name per line, and the CUDA version that brought it if it is known.
fn read_list(path: &Path) -> Result<List, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut names, mut since) = (BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(name) = words.next() else { continue };
        if let Some(version) = words.next() {
            since.insert(name.clone(), version);
        }
        names.insert(name);
    }
    Ok((names, since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_without_driver_functions_is_rejected() {
        let this = std::env::current_exe().unwrap();
        let problem = exported_names(&this).unwrap_err();
        assert!(problem.contains("exports neither"), "{problem}");
        assert!(exported_names(Path::new("/nonexistent")).is_err());
    }
}
