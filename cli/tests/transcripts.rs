//! The transcripts of the documents: each command in them is run, with real containers on a simulated GPU, and prints what the document
//! says.
//!
//! In a page, a block `toml` is the policy until the next section, and a block `console` has commands behind `# ` (of root) or `$ ` (of
//! another user) with their output. Each section begins without containers. `VGPU_WRITE_TRANSCRIPTS=1` writes the outputs that differ.

mod common;
mod shell;

use std::fmt::Write;
use std::path::Path;

use common::ready;
use shell::{Shell, same};

/// Pages with transcripts.
const PAGES: [&str; 2] = ["operate/transcripts.md", "troubleshoot/mistakes.md"];

/// Runs the commands of a page. Returns the page as it should be, and the commands whose output differs.
fn run(page: &str, shell: &mut Shell) -> (String, Vec<String>) {
    let (mut written, mut different, mut lines) = (String::new(), Vec::new(), page.lines().peekable());
    let (mut block, mut policy) = ("", String::new());
    while let Some(line) = lines.next() {
        written += &format!("{line}\n");
        match (block, line) {
            ("toml" | "console", "```") => {
                if block == "toml" {
                    shell.policy(&policy);
                }
                block = "";
            }
            ("toml", _) => writeln!(policy, "{line}").unwrap(),
            ("console", _) => {
                let mut said = Vec::new();
                while let Some(line) = lines.next_if(|line| !line.starts_with("# ") && !line.starts_with("$ ") && *line != "```") {
                    said.push(line);
                }
                let found = shell.run(line);
                if same(&said.join("\n"), &found) {
                    said.iter().for_each(|line| written += &format!("{line}\n"));
                } else {
                    different.push(format!("{line}\n--- in the document:\n{}\n--- now:\n{found}", said.join("\n")));
                    found.lines().for_each(|line| written += &format!("{line}\n"));
                }
            }
            (_, "```toml" | "```console") => (block, policy) = (&line[3..], String::new()),
            (_, _) if line.starts_with("## ") => shell.begin(),
            _ => {}
        }
    }
    (written, different)
}

fn check(name: &str) {
    let Some((kit, machine, host)) = ready() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    let page = std::fs::read_to_string(&path).unwrap();
    let mut shell = Shell::new(&kit, &machine, &host);
    let (written, different) = run(&page, &mut shell);
    if std::env::var_os("VGPU_WRITE_TRANSCRIPTS").is_some() {
        std::fs::write(&path, written).unwrap();
        return;
    }
    let differ = different.join("\n\n");
    assert!(different.is_empty(), "docs/{name} (VGPU_WRITE_TRANSCRIPTS=1 writes it):\n{differ}");
}

#[test]
fn the_transcripts_of_the_commands_are_true() {
    check(PAGES[0]);
}

#[test]
fn the_transcripts_of_the_likely_mistakes_are_true() {
    check(PAGES[1]);
}
