//! The one edit of containerd's main file: an `imports` entry for the drop-in, and its removal.

use std::path::Path;

use toml_edit::{Array, DocumentMut, value};

use crate::error::Error;
use crate::imports;
use crate::source::Source;
use crate::version::Version;

/// Comment on every line that [`attach`] adds. [`detach`] removes whole lines only if they have it.
const ADDED: &str = " # added by \"vgpu configure\"";

/// A main file after the edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// The new text.
    pub text: String,
    /// The declared version.
    pub version: Version,
}

/// Makes `main` import `drop_in`. A file without any key gets `version`, as containerd would read it as version 1.
///
/// The entry is a glob for the drop-in alone: containerd 1.x does not start if a file that is imported by name is missing, and a wider
/// glob would import other files.
pub fn attach(main: &Source, drop_in: &Path, version: Version) -> Result<Edited, Error> {
    let mut doc = main.parse()?;
    let declared = Version::declared(&doc, main)?;
    if declared.is_none() {
        doc["version"] = value(version.number());
        mark(&mut doc, "version");
    }
    let version = declared.unwrap_or(version);
    if imports::resolve(&doc, main)?.iter().any(|pattern| pattern.matches(drop_in)) {
        return Ok(Edited { text: doc.to_string(), version });
    }
    let entry = entry(drop_in);
    match doc.get_mut("imports").and_then(|item| item.as_array_mut()) {
        Some(list) => push(list, &entry),
        None => {
            doc["imports"] = value(Array::from_iter([entry]));
            mark(&mut doc, "imports");
        }
    }
    Ok(Edited { text: doc.to_string(), version })
}

/// Undoes [`attach`] and keeps all other content, including later changes. `None` if there is nothing to undo.
pub fn detach(main: &Source, drop_in: &Path) -> Result<Option<String>, Error> {
    let mut doc = main.parse()?;
    let before = doc.to_string();
    let entry = entry(drop_in);
    if let Some(list) = doc.get_mut("imports").and_then(|item| item.as_array_mut()) {
        for index in (0..list.len()).rev() {
            if list.get(index).and_then(|item| item.as_str()) == Some(&entry) {
                remove(list, index);
            }
        }
        if list.is_empty() && is_marked(&doc, "imports") {
            doc.remove("imports");
        }
    }
    if doc.len() == 1 && is_marked(&doc, "version") {
        doc.remove("version");
    }
    Ok(Some(doc.to_string()).filter(|after| *after != before))
}

fn entry(drop_in: &Path) -> String {
    drop_in.with_extension("").display().to_string() + "*.toml"
}

/// Returns the text of white space and comments around an item.
fn text(raw: Option<&toml_edit::RawString>) -> String {
    raw.and_then(|raw| raw.as_str()).unwrap_or_default().to_owned()
}

/// Removes an entry and keeps the comments around it. The text after the last entry is the operator's: [`push`] put the entry before it.
fn remove(list: &mut Array, index: usize) {
    let removed = list.remove(index);
    let comment = Some(text(removed.decor().prefix())).filter(|prefix| prefix.contains('#')).unwrap_or_default();
    let after = text(removed.decor().suffix());
    match list.get_mut(index) {
        Some(next) => {
            let kept = comment + if after.contains('#') { &after } else { "" };
            let prefix = kept + &text(next.decor().prefix());
            next.decor_mut().set_prefix(prefix);
        }
        None => list.set_trailing(comment + &after + &text(Some(list.trailing()))),
    }
}

/// Appends an entry in the style of the list: on a line of its own if the others are, with the space before the bracket kept.
fn push(list: &mut Array, entry: &str) {
    let (mut prefix, mut suffix) = (String::new(), String::new());
    if let Some(last) = list.iter_mut().last() {
        // Comments above or after the last item stay with it.
        let own = text(last.decor().prefix());
        prefix = own.rsplit_once('\n').map_or_else(|| " ".into(), |(_, indent)| format!("\n{indent}"));
        suffix = text(last.decor().suffix());
        if suffix.contains('#') {
            suffix.clear();
        } else {
            last.decor_mut().set_suffix("");
        }
    }
    list.push_formatted(toml_edit::Value::from(entry).decorated(prefix, suffix));
}

fn mark(doc: &mut DocumentMut, key: &str) {
    if let Some(item) = doc.get_mut(key).and_then(|item| item.as_value_mut()) {
        item.decor_mut().set_suffix(ADDED);
    }
}

fn is_marked(doc: &DocumentMut, key: &str) -> bool {
    doc.get(key)
        .and_then(|item| item.as_value())
        .and_then(|v| v.decor().suffix())
        .and_then(|s| s.as_str())
        .is_some_and(|s| s.contains(ADDED.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DROP_IN: &str = "/etc/containerd/conf.d/99-vgpu.toml";
    const DEBIAN: &str = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n";
    const ENTRY: &str = "\"/etc/containerd/conf.d/99-vgpu*.toml\"";

    fn attached(text: &str) -> Edited {
        attach(&Source::new("/etc/containerd/config.toml", text), Path::new(DROP_IN), Version::V3).unwrap()
    }

    fn detached(text: &str) -> String {
        detach(&Source::new("/etc/containerd/config.toml", text), Path::new(DROP_IN)).unwrap().unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn detach_undoes_attach() {
        for (description, text, contains) in [
            ("no file", "", format!("imports = [{ENTRY}]")),
            ("comments only", "# nothing set\n", format!("imports = [{ENTRY}]")),
            ("Debian's default", DEBIAN, format!("imports = [{ENTRY}]")),
            ("an empty list as in `config default`", "version = 2\nimports = []\n", format!("imports = [{ENTRY}]\n")),
            (
                "another entry and a comment",
                "version = 3 # three\nimports = [ \"/a/*.toml\" ] # keep\n[plugins]\n",
                format!("\"/a/*.toml\", {ENTRY}"),
            ),
            (
                "one entry on each line",
                "version = 2\nimports = [\n  # why\n  \"/a.toml\",\n  \"/b.toml\",\n]\n",
                format!("\n  \"/b.toml\",\n  {ENTRY}"),
            ),
            ("comments in an empty list", "version = 2\nimports = [ # one\n  # two\n] # three\n", format!("[{ENTRY} # one\n  # two\n]")),
            (
                "a comment after the last entry",
                "version = 2\nimports = [\n  \"/a.toml\" # why\n  # more\n]\n",
                format!("\"/a.toml\" # why\n  # more\n,\n  {ENTRY}"),
            ),
            ("already included", "version = 4\nimports = [\"conf.d/*.toml\"]\n", "imports = [\"conf.d/*.toml\"]".into()),
            ("no newline at the end", "version = 2", format!("imports = [{ENTRY}]")),
        ] {
            let edited = attached(text);
            assert!(edited.text.contains(&contains), "{description}: {}", edited.text);
            assert_eq!(attached(&edited.text), edited, "{description}: idempotent");
            let back = detached(&edited.text);
            assert_eq!(strip(&back), strip(text), "{description}");
            assert_eq!(detached(&back), back, "{description}: nothing remains to undo");
        }
    }

    #[test]
    fn detach_keeps_comments_that_were_added_around_the_entry() {
        let before = format!("version = 2\nimports = [\n  # ours\n  {ENTRY}, # theirs\n  # next\n  \"/b.toml\",\n]\n");
        let back = detached(&before);
        for comment in ["# ours", "# theirs", "# next"] {
            assert!(back.contains(comment), "{comment}: {back}");
        }
    }

    fn strip(text: &str) -> String {
        text.split_whitespace().collect()
    }

    #[test]
    fn imports_come_before_the_first_table() {
        let text = attached(DEBIAN).text;
        let doc: DocumentMut = text.parse().unwrap();
        assert!(doc["imports"].is_array(), "{text}");
        assert!(doc["plugins"]["io.containerd.grpc.v1.cri"].get("imports").is_none());
    }

    #[test]
    fn the_declared_version_is_used() {
        assert_eq!(attached("version = 2\n").version, Version::V2);
        assert_eq!(attached("version = 4\n").version, Version::V4);
        assert_eq!(attached("").version, Version::V3);
        assert!(attached("# x\n").text.contains("version = 3"));
    }

    #[test]
    fn later_changes_are_kept() {
        let text = attached("version = 2\n").text + "oom_score = -1 # mine\n";
        assert_eq!(detached(&text), "version = 2\noom_score = -1 # mine\n");
    }

    #[test]
    fn unsupported_versions_are_refused() {
        let main = |text: &str| Source::new("/c.toml", text);
        let error = |text| attach(&main(text), Path::new(DROP_IN), Version::V2).unwrap_err().to_string();
        assert!(error("disabled_plugins = [\"cri\"]\n").starts_with("/c.toml: configuration version 1 (none given)"));
        assert!(error("version = 7\n").contains("version 7"));
        assert!(error("version = \n").starts_with("/c.toml: TOML parse error"));
    }
}
