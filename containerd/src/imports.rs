//! The `imports` list, resolved as in containerd: relative to the file that has it, with `*` as a glob.

use std::path::{Component, Path, PathBuf};

use toml_edit::DocumentMut;

use crate::error::Error;
use crate::source::Source;

/// One entry of `imports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The entry as an absolute path, which may contain `*`.
    pub path: PathBuf,
}

impl Pattern {
    /// Returns whether this entry imports `file` (an absolute path).
    pub fn matches(&self, file: &Path) -> bool {
        let text = self.path.to_string_lossy();
        // containerd treats only entries with `*` as globs. Go's `*` does not match the separator.
        if !text.contains('*') {
            return self.path == file;
        }
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        glob::Pattern::new(&text).is_ok_and(|pattern| pattern.matches_path_with(file, options))
    }
}

/// Returns the entries of a file's `imports`, in order.
pub fn patterns(source: &Source) -> Result<Vec<Pattern>, Error> {
    resolve(&source.parse()?, source)
}

/// Returns whether a file's `imports` include `file`.
pub fn covers(source: &Source, file: &Path) -> Result<bool, Error> {
    Ok(patterns(source)?.iter().any(|pattern| pattern.matches(file)))
}

pub(crate) fn resolve(doc: &DocumentMut, source: &Source) -> Result<Vec<Pattern>, Error> {
    let wrong_type = || Error::Type { path: source.path.display().to_string(), key: "imports".into(), expected: "a list of strings" };
    let Some(imports) = doc.get("imports") else { return Ok(Vec::new()) };
    let directory = source.path.parent().unwrap_or(Path::new("/"));
    imports
        .as_array()
        .ok_or_else(wrong_type)?
        .iter()
        .map(|entry| entry.as_str().ok_or_else(wrong_type).map(|entry| Pattern { path: clean(&directory.join(entry)) }))
        .collect()
}

/// Removes `.` and `..` from an absolute path, as Go's `filepath.Clean` does.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_include_files() {
        let file = Path::new("/etc/containerd/conf.d/99-vgpu.toml");
        for (imports, expected) in [
            (r#"["/etc/containerd/conf.d/*.toml"]"#, true),
            (r#"["conf.d/*.toml"]"#, true),
            (r#"["./x/../conf.d/99-vgpu.toml"]"#, true),
            (r#"["/etc/containerd/conf.d/99-vgpu*.toml"]"#, true),
            (r#"["/etc/containerd/*"]"#, false),
            (r#"["/etc/containerd/*.toml"]"#, false),
            (r#"["/etc/containerd/conf.d/*.conf", "/x"]"#, false),
            ("[]", false),
        ] {
            let source = Source::new("/etc/containerd/config.toml", format!("version = 2\nimports = {imports}\n"));
            assert_eq!(covers(&source, file).unwrap(), expected, "{imports}");
        }
    }

    #[test]
    fn a_wrong_type_is_refused() {
        let source = Source::new("/e/c.toml", "version = 2\nimports = \"conf.d/*\"\n");
        assert_eq!(patterns(&source).unwrap_err().to_string(), "/e/c.toml: imports: expected a list of strings");
    }
}
