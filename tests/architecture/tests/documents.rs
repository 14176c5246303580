//! The documents name files and folders that exist.

use std::path::{Path, PathBuf};

/// The workspace's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the documents for people: those at the root and the book in `docs/`.
fn documents() -> Vec<PathBuf> {
    let mut documents = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of docs/") {
            let path = entry.expect("an entry of docs/").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "md") {
                documents.push(path);
            }
        }
    }
    documents
}

/// Returns what stands between `open` and `close` in a text, without line breaks.
fn between<'a>(text: &'a str, open: &str, close: char) -> Vec<&'a str> {
    let pieces = text.split(open).skip(1);
    pieces.filter_map(|rest| rest.split_once(close)).map(|(inside, _)| inside).filter(|inside| !inside.contains('\n')).collect()
}

/// Returns the paths in backticks that begin with a folder of the workspace.
fn paths(text: &str) -> Vec<&str> {
    let is_path = |inside: &&str| inside.contains('/') && !inside.contains([' ', '<', '*', '$', ':']);
    let in_workspace = |inside: &&str| inside.split('/').next().is_some_and(|first| !first.is_empty() && root().join(first).is_dir());
    text.split('`').skip(1).step_by(2).filter(is_path).filter(in_workspace).collect()
}

#[test]
fn links_lead_to_files() {
    let mut broken = vec![];
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document is readable");
        for link in between(&text, "](", ')') {
            let file = link.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') && !document.with_file_name(file).exists() {
                broken.push(format!("{}: link to {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "expected links to files that exist:\n{}", broken.join("\n"));
}

#[test]
fn paths_name_files() {
    let mut missing = vec![];
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document is readable");
        missing.extend(
            paths(&text).into_iter().filter(|path| !root().join(path).exists()).map(|path| format!("{}: `{path}`", document.display())),
        );
    }
    assert!(missing.is_empty(), "expected paths of files that exist:\n{}", missing.join("\n"));
}

#[test]
fn paths_are_told_from_other_code() {
    assert_eq!(
        paths("`config/src/dialect`, `make test`, `nvidia.com/gpumem`, `tests/*.rs`, `docs/none.md`"),
        ["config/src/dialect", "docs/none.md"]
    );
    assert_eq!(between("[a](b.md) and [c](d.md#e)", "](", ')'), ["b.md", "d.md#e"]);
}
