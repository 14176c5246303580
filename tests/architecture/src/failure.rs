//! What breaks a rule, and what to do about it.

use std::fmt;

use crate::graph::Edge;

/// Names shown for one import; more are counted.
const MAX_NAMES: usize = 8;

/// One breach of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Files that import each other in a circle; the edges are one shortest way round.
    Circle {
        /// All files that are part of the circle or of circles joined to it.
        files: Vec<String>,
        /// A shortest way round.
        way: Vec<Edge>,
    },
    /// An import from a lower layer to a higher one.
    Upward {
        /// The import.
        edge: Edge,
        /// The layer of the importing file, from 1 for the lowest.
        from_layer: usize,
        /// The layer of the imported file.
        to_layer: usize,
    },
    /// A file that is in no layer.
    NoLayer(String),
    /// An entry that is in two layers.
    TwoLayers(String),
    /// An entry that covers no file.
    NoFile(String),
    /// A dependency that `may_depend_on` does not name.
    Dependency(String),
    /// A name in `may_depend_on` that is not a crate listed before this one.
    NotLower(String),
    /// A crate of the workspace that is not listed.
    UnlistedCrate,
    /// A listed crate that the workspace does not have.
    NoCrate,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Circle { files, way } => {
                writeln!(f, "{} files import each other in a circle: {}", files.len(), files.join(", "))?;
                for edge in way {
                    writeln!(f, "    {}", Shown(edge))?;
                }
                write!(f, "  Move what both sides need into a file of its own that imports neither, or merge the files.")
            }
            Self::Upward { edge, from_layer, to_layer } => {
                writeln!(f, "import upward, from layer {from_layer} to layer {to_layer}: {}", Shown(edge))?;
                write!(f, "  Move the names to layer {from_layer} or lower, or pass them in from above.")
            }
            Self::NoLayer(file) => write!(f, "{file} is in no layer\n  Add it to a layer of this crate in layers.toml."),
            Self::TwoLayers(entry) => write!(f, "`{entry}` is in two layers\n  Remove it from one of them in layers.toml."),
            Self::NoFile(entry) => write!(f, "`{entry}`: expected a file or folder below src\n  Correct or remove it in layers.toml."),
            Self::Dependency(on) => {
                writeln!(f, "depends on {on}, which `may_depend_on` does not name")?;
                write!(f, "  Remove the dependency; if the architecture is to change, change layers.toml.")
            }
            Self::NotLower(name) => {
                write!(
                    f,
                    "`may_depend_on` names {name}: expected a crate listed before this one\n  Reorder layers.toml or remove the name."
                )
            }
            Self::UnlistedCrate => write!(f, "is not in layers.toml\n  Add a [[crate]] for it, after all crates that it depends on."),
            Self::NoCrate => write!(f, "is in layers.toml but not in the workspace\n  Remove its [[crate]]."),
        }
    }
}

/// An import as `file -> file: names`.
struct Shown<'a>(&'a Edge);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge { from, to, names } = self.0;
        let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
        write!(f, "{from} -> {to}: {}", shown.join(", "))?;
        match names.len().saturating_sub(MAX_NAMES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
