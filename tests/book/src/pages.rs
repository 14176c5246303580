//! The pages of the book.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A page: its name below `docs/`, and its text.
#[derive(Debug)]
pub struct Page {
    /// Path below `docs/`.
    pub name: String,
    /// Text.
    pub text: String,
}

/// Returns the pages in a chapter, a folder of `docs/`.
///
/// # Panics
/// The chapter cannot be read.
pub fn chapter(name: &str) -> Vec<Page> {
    let entries = fs::read_dir(root().join("docs").join(name)).unwrap_or_else(|error| panic!("docs/{name}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of the chapter").path()).collect();
    files.sort();
    let page = |file: &PathBuf| Page {
        name: format!("{name}/{}", file.file_name().unwrap_or_default().to_string_lossy()),
        text: fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())),
    };
    files.iter().map(page).collect()
}

impl Page {
    /// Returns the lines, with white space as in [`crate::messages`].
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns the pieces of code: the lines of its blocks, and code between backticks. What is apart by several spaces, as the columns of a
    /// screen are, are pieces of their own, too.
    pub fn pieces(&self) -> Vec<String> {
        let lines: Vec<&str> = self.text.lines().collect();
        let in_blocks = lines.split(|line| line.starts_with("```")).skip(1).step_by(2).flatten().map(|&line| line.to_owned());
        let pieces = in_blocks.chain(lines.iter().flat_map(|line| code(line)));
        let one_space = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        pieces.flat_map(|piece| piece.split("   ").map(one_space).chain([one_space(&piece)]).collect::<Vec<_>>()).collect()
    }

    /// Returns the rows of the page's tables that begin with code, by cell.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.text.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
    }
}

/// Returns the pieces of code in a line of Markdown. Code with backticks of its own is between double ones. In tables, `\|` stands for `|`.
pub fn code(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "|");
    let mut pieces = vec![];
    for (index, part) in line.split("``").enumerate() {
        if index % 2 == 1 {
            pieces.push(part.to_owned());
        } else {
            pieces.extend(part.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_prose() {
        assert_eq!(code("| `a b`, ``c `d` e`` | f `g` |"), ["a b", "c `d` e", "g"]);
        assert_eq!(code(r"| `a\|b` |"), ["a|b"]);
    }
}
