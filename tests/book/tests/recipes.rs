//! Recipes of the book that no test of the quickstarts runs.

use std::fs;
use std::process::Command;

use clap::Parser;
use vgpu_book::pages::root;
use vgpu_cli::Cli;

/// Returns the script of the `TaskProlog` in docs/run.md: the indented block that begins with `#!`.
fn prolog(page: &str) -> String {
    let block = page.lines().skip_while(|line| !line.starts_with("    #!")).take_while(|line| line.starts_with("    "));
    block.map(|line| format!("{}\n", line.trim_start())).collect()
}

/// Returns what Slurm exports from a prolog's output: the rest of a line that begins with `export NAME=`, as it is.
fn exports(output: &str) -> Vec<(&str, &str)> {
    output.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('=')).collect()
}

#[test]
fn the_slurm_prolog_exports_a_command_that_starts() {
    let page = fs::read_to_string(root().join("docs/run.md")).expect("docs/run.md");
    let output = Command::new("sh").args(["-euc", &prolog(&page)]).env("SLURM_JOB_ID", "42").output().expect("a shell");
    let output = String::from_utf8(output.stdout).expect("text");
    let exported = exports(&output);
    assert_eq!(exported.len(), 1, "{output}");

    // The job script's shell splits the variable into words, without a second look at quotes.
    let (name, value) = exported[0];
    assert!(page.contains(&format!("`srun ${name} python train.py`")), "expected the page to show how ${name} is used");
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    assert_eq!(words[..2], ["vgpu", "run"], "{value}");
    assert_eq!(words.iter().skip_while(|&&word| word != "--name").nth(1), Some(&"job-42"), "{value}");
    Cli::try_parse_from(words.into_iter().chain(["python", "train.py"])).unwrap_or_else(|error| panic!("{value}: {error}"));
}

#[test]
fn quotes_of_a_prolog_become_part_of_the_value() {
    assert_eq!(exports("export A='b c'\nprint text\nexport D=\n"), [("A", "'b c'"), ("D", "")]);
}
