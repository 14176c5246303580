//! The manifests and sources of a workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::modules::Sources;

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Error {
    path: PathBuf,
    reason: String,
}

/// One crate of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The crates of the workspace in its `[dependencies]`, those for some targets only included.
    pub dependencies: BTreeSet<String>,
    /// The files below its `src`.
    pub sources: Sources,
}

#[derive(Deserialize)]
struct Root {
    workspace: Members,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<String>,
    dependencies: BTreeMap<String, Dependency>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Named,
    #[serde(default)]
    dependencies: BTreeMap<String, Dependency>,
    #[serde(default)]
    target: BTreeMap<String, ForTarget>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct ForTarget {
    #[serde(default)]
    dependencies: BTreeMap<String, Dependency>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Dependency {
    Table { package: Option<String> },
    Version(#[expect(dead_code, reason = "only its form matters")] String),
}

/// Reads the crates of the workspace in the folder `root`, in the order of its members.
///
/// # Errors
///
/// A manifest or source file that cannot be read.
pub fn read(root: &Path) -> Result<Vec<Package>, Error> {
    let workspace = toml::<Root>(&root.join("Cargo.toml"))?.workspace;
    let folders: Vec<PathBuf> = workspace.members.iter().map(|member| root.join(member)).collect();
    let manifests = folders.iter().map(|folder| toml::<Manifest>(&folder.join("Cargo.toml"))).collect::<Result<Vec<_>, _>>()?;
    let names: BTreeSet<String> = manifests.iter().map(|manifest| manifest.package.name.clone()).collect();
    let mut packages = vec![];
    for (folder, manifest) in folders.iter().zip(manifests) {
        let for_targets = manifest.target.values().flat_map(|target| &target.dependencies);
        let dependencies = manifest.dependencies.iter().chain(for_targets).map(|(key, dependency)| {
            let inherited = workspace.dependencies.get(key).and_then(package_of);
            package_of(dependency).or(inherited).unwrap_or(key).to_owned()
        });
        let dependencies = dependencies.filter(|name| names.contains(name)).collect();
        let mut sources = Sources::new();
        read_sources(&folder.join("src"), "", &mut sources)?;
        packages.push(Package { name: manifest.package.name, dependencies, sources });
    }
    Ok(packages)
}

/// Reads a TOML file.
///
/// # Errors
///
/// A file that cannot be read or is not as `T` expects.
pub fn toml<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(|error| Error::of(path, error))?;
    toml_edit::de::from_str(&text).map_err(|error| Error::of(path, error))
}

/// Returns the name of a renamed dependency's package.
fn package_of(dependency: &Dependency) -> Option<&str> {
    match dependency {
        Dependency::Table { package } => package.as_deref(),
        Dependency::Version(_) => None,
    }
}

fn read_sources(folder: &Path, prefix: &str, sources: &mut Sources) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(|error| Error::of(folder, error))? {
        let path = entry.map_err(|error| Error::of(folder, error))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_dir() {
            read_sources(&path, &format!("{prefix}{name}/"), sources)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).map_err(|error| Error::of(&path, error))?;
            sources.insert(format!("{prefix}{name}"), text);
        }
    }
    Ok(())
}

impl Error {
    fn of(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}
