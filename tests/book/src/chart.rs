//! Reference of the Helm chart's values, from `values.yaml`: keys, defaults, and the comments above them.

use crate::markdown::{cell, table};
use crate::pages::root;

/// Returns the page of the chart's values.
///
/// # Panics
/// `values.yaml` cannot be read.
pub fn page() -> String {
    let path = root().join("packaging/helm/vgpu/values.yaml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = values(&text).into_iter().map(|value| {
        let default = if value.default.is_empty() { String::new() } else { format!("`{}`", value.default) };
        vec![format!("`{}`", value.path), default, cell(&value.comment)]
    });
    format!(
        "# Values of the Helm chart\n\n`helm install vgpu packaging/helm/vgpu --set KEY=VALUE`. The chart's [README](../../packaging/helm/vgpu/README.md) has \
         its objects and their privileges.\n\n{}",
        table(&["value", "default", "meaning"], rows)
    )
}

/// One value, or a group of values without a default.
#[derive(Debug, Default, PartialEq, Eq)]
struct Value {
    path: String,
    default: String,
    comment: String,
}

/// Parses the part of YAML that the file uses: mappings indented by two spaces, with values and lists of one line each.
fn values(text: &str) -> Vec<Value> {
    let mut values: Vec<Value> = vec![];
    let mut path: Vec<&str> = vec![];
    let mut comment: Vec<&str> = vec![];
    for line in text.lines() {
        let depth = (line.len() - line.trim_start().len()) / 2;
        match line.trim() {
            "" => comment.clear(),
            line if line.starts_with('#') => comment.push(line.trim_start_matches('#').trim()),
            line if line.starts_with("- ") => values.last_mut().expect("a list has a key").default = format!("[{{{}}}]", &line[2..]),
            line => {
                let (key, default) = line.split_once(':').unwrap_or_else(|| panic!("{line}: expected KEY: VALUE"));
                path.truncate(depth);
                path.push(key);
                values.push(Value { path: path.join("."), default: default.trim().to_owned(), comment: comment.join(" ") });
                comment.clear();
            }
        }
    }
    // A group needs a row only for its comment.
    values.retain(|value| !value.default.is_empty() || !value.comment.is_empty());
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_path_default_and_comment() {
        let text = "# Group.\na:\n  # One\n  # line.\n  b: true\n  c:\n    - x: Y\nd: \"\"\n";
        let value =
            |path: &str, default: &str, comment: &str| Value { path: path.into(), default: default.into(), comment: comment.into() };
        let expected = [value("a", "", "Group."), value("a.b", "true", "One line."), value("a.c", "[{x: Y}]", ""), value("d", "\"\"", "")];
        assert_eq!(values(text), expected);
    }
}
