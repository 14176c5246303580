//! The checker on small source trees in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::failure::Failure;
use crate::graph::Graph;
use crate::modules::{Error, Modules};
use crate::resolve::graph;
use crate::rules::{CrateRules, Rules, covers};

fn graph_of(sources: &[(&str, &str)]) -> Graph {
    let sources = sources.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())).collect();
    graph(&Modules::of(&sources).unwrap())
}

/// The imports in `sources`, as `file -> file: names`.
fn imports(sources: &[(&str, &str)]) -> Vec<String> {
    let shown = |edge: crate::graph::Edge| {
        let names: Vec<String> = edge.names.into_iter().collect();
        format!("{} -> {}: {}", edge.from, edge.to, names.join(", "))
    };
    graph_of(sources).edges().map(shown).collect()
}

fn failures(sources: &[(&str, &str)], layers: &[&[&str]]) -> Vec<String> {
    let owned = |lists: &[&[&str]]| lists.iter().map(|list| list.iter().map(|&entry| entry.to_owned()).collect()).collect();
    let rules = CrateRules { layers: owned(layers), ..CrateRules::default() };
    check::files(&graph_of(sources), &rules).iter().map(Failure::to_string).collect()
}

/// Asserts that there is one failure and that its message contains `expected`.
#[track_caller]
fn assert_fails(failures: &[String], expected: &str) {
    assert_eq!(failures.len(), 1, "{failures:#?}");
    assert!(failures[0].contains(expected), "expected {expected:?} in {}", failures[0]);
}

const CIRCLE: &[(&str, &str)] = &[
    ("lib.rs", "mod a; mod b; mod c;"),
    ("a.rs", "use crate::b::Second; pub struct First(Second);"),
    ("b.rs", "use super::c; pub struct Second(c::Third);"),
    ("c.rs", "pub struct Third(Box<crate::a::First>);"),
];

#[test]
fn circle_fails_and_is_shown_with_its_names() {
    let failures = failures(CIRCLE, &[]);
    assert_fails(&failures, "3 files import each other in a circle: a.rs, b.rs, c.rs");
    assert_fails(&failures, "    a.rs -> b.rs: Second\n    b.rs -> c.rs: Third\n    c.rs -> a.rs: First\n");
    assert_fails(&failures, "Move what both sides need");
}

#[test]
fn child_that_needs_what_its_parent_defines_makes_a_circle() {
    let sources = [
        ("lib.rs", "mod parent;"),
        ("parent.rs", "mod child; pub const SIZE: usize = 1; pub fn run() { child::run() }"),
        ("parent/child.rs", "use super::SIZE; pub fn run() { _ = SIZE; }"),
    ];
    assert_fails(&failures(&sources, &[]), "parent.rs -> parent/child.rs: run\n    parent/child.rs -> parent.rs: SIZE");
}

#[test]
fn circle_through_macro_calls_fails() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b; hooks! { Cuda b::allocate::<false> => (bytes: usize): cuMemAlloc; } pub fn real() {}"),
        ("b.rs", "pub fn allocate() { check!(1 + crate::a::real()); }"),
    ];
    assert_fails(&failures(&sources, &[]), "a.rs -> b.rs: allocate\n    b.rs -> a.rs: real");
}

#[test]
fn circle_through_a_macro_definition_fails() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "macro_rules! call { ($f:path) => { $f($crate::b::NUMBER, $crate::b::{self, deep::{More}}) } } pub fn real() {}"),
        ("b.rs", "use super::a::real; pub const NUMBER: usize = 1;"),
    ];
    let failures = failures(&sources, &[]);
    assert_fails(&failures, "a.rs -> b.rs: NUMBER, ");
    assert_fails(&failures, "b.rs -> a.rs: real");
}

#[test]
fn macros_by_name_are_imports_of_the_defining_file() {
    let sources = [
        ("lib.rs", "#[macro_use] mod a; mod b; mod c;"),
        ("a.rs", "macro_rules! textual { () => {} } #[macro_export] macro_rules! exported { () => {} }"),
        ("b.rs", "textual! {} println!(); pub fn f() { inner!(textual!()) }"),
        ("c.rs", "crate::exported! {}"),
    ];
    assert_eq!(imports(&sources), ["b.rs -> a.rs: textual", "c.rs -> a.rs: exported"]);
}

#[test]
fn import_upward_fails() {
    let sources = [("lib.rs", "mod low; mod high;"), ("low.rs", "fn f(_: &crate::high::Plan) {}"), ("high.rs", "pub struct Plan;")];
    let failures = failures(&sources, &[&["low"], &["high", "lib.rs"]]);
    assert_fails(&failures, "import upward, from layer 1 to layer 2: low.rs -> high.rs: Plan\n  Move the names to layer 1 or lower");
}

#[test]
fn imports_downward_and_within_a_layer_pass() {
    let sources = [
        ("lib.rs", "mod low; mod high; pub use high::Plan;"),
        ("low.rs", "mod part; pub use part::Part;"),
        ("low/part.rs", "pub struct Part;"),
        ("high.rs", "pub struct Plan(crate::low::Part);"),
    ];
    assert_eq!(failures(&sources, &[&["low"], &["high"], &["lib.rs"]]), [""; 0]);
    assert_eq!(failures(&sources, &[&["low/part"], &["low", "high", "lib.rs"]]), [""; 0]);
    assert_fails(&failures(&sources, &[&["low.rs"], &["low", "high", "lib.rs"]]), "low.rs -> low/part.rs: Part");
}

#[test]
fn every_file_is_in_exactly_one_layer() {
    let sources = [("lib.rs", "mod a; mod b;"), ("a.rs", ""), ("b.rs", "")];
    assert_fails(&failures(&sources, &[&["a"], &["lib.rs"]]), "b.rs is in no layer");
    assert_fails(&failures(&sources, &[&["a", "b"], &["b", "lib.rs"]]), "`b` is in two layers");
    assert_fails(&failures(&sources, &[&["a", "b", "c"], &["lib.rs"]]), "`c`: expected a file or folder below src");
}

#[test]
fn entries_cover_files_and_folders() {
    for (entry, file, expected) in [
        ("memory", "memory.rs", true),
        ("memory", "memory/ledger.rs", true),
        ("memory", "memory_map.rs", false),
        ("memory.rs", "memory.rs", true),
        ("memory.rs", "memory/ledger.rs", false),
        ("memory/ledger", "memory.rs", false),
    ] {
        assert_eq!(covers(entry, file), expected, "{entry} {file}");
    }
}

#[test]
fn names_lead_past_re_exports_to_the_file_that_defines_them() {
    let sources = [
        ("lib.rs", "mod error; mod folder; mod user; pub use error::{Error as Failed, Result}; pub use folder::*;"),
        ("error.rs", "pub struct Error; pub type Result = ();"),
        ("folder.rs", "mod inner; pub use self::inner::{Deep, inner};"),
        ("folder/inner.rs", "pub struct Deep; pub fn inner() {}"),
        (
            "user.rs",
            "use super::{Deep, Failed}; use crate::{folder as f, Result}; fn g(_: f::Deep) { crate::folder::inner(); Deep::new() }",
        ),
    ];
    assert_eq!(
        imports(&sources),
        [
            "folder.rs -> folder/inner.rs: Deep, inner",
            "lib.rs -> error.rs: Error, Result",
            "lib.rs -> folder.rs: the module itself",
            "user.rs -> error.rs: Error, Result",
            "user.rs -> folder/inner.rs: Deep, the module itself",
        ]
    );
}

#[test]
fn modules_on_the_way_are_no_imports() {
    let sources = [
        ("lib.rs", "mod memory; mod user; pub const MAX: usize = 1;"),
        ("memory.rs", "pub mod ledger; pub mod unused;"),
        ("memory/ledger.rs", "pub fn claim() {}"),
        ("memory/unused.rs", ""),
        ("user.rs", "use crate::{memory, memory::unused}; fn f() { memory::ledger::claim() }"),
    ];
    assert_eq!(imports(&sources), ["user.rs -> memory/ledger.rs: claim", "user.rs -> memory/unused.rs: the module itself"]);
}

#[test]
fn inline_modules_belong_to_their_file() {
    let sources = [
        ("lib.rs", "mod a { pub mod inner { use super::super::b::B; use super::A; } pub struct A; mod file; } mod b;"),
        ("a/file.rs", "use super::inner; use crate::a::A;"),
        ("b.rs", "pub struct B;"),
    ];
    assert_eq!(imports(&sources), ["a/file.rs -> lib.rs: A, the module itself", "lib.rs -> b.rs: B"]);
}

#[test]
fn test_only_code_does_not_count() {
    let sources = [
        (
            "lib.rs",
            "mod a; #[cfg(test)] mod tests; #[cfg(all(test, unix))] use a::A; #[cfg(not(test))] use a::B; #[cfg(any(test, loom))] use a::C;",
        ),
        (
            "a.rs",
            "pub struct A; #[cfg(test)] mod inner { use super::super::Root; } #[test] fn t() { crate::x(); }
             impl A { #[cfg(test)] fn f() { crate::x() } fn g() { #[cfg(test)] { crate::x() } #[cfg(test)] let _ = crate::x(); } }",
        ),
    ];
    assert_eq!(imports(&sources), ["lib.rs -> a.rs: B, C"]);
}

#[test]
fn visibilities_and_other_crates_are_no_imports() {
    let sources = [
        ("lib.rs", "mod a; mod log;"),
        ("a.rs", "use std::fmt; pub(in crate::log) struct A(fmt::Error, ::log::Level); fn f(x: A) { x.log::<u8>(); }"),
        ("log.rs", ""),
    ];
    assert_eq!(imports(&sources), [""; 0]);
}

#[test]
fn functions_named_in_attributes_are_imports() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", r#"#[serde(default = "crate::b::seconds")] struct A { #[command(value_parser = crate::b::parse)] b: u8 }"#),
        ("b.rs", "pub fn seconds() {} pub fn parse() {}"),
    ];
    assert_eq!(imports(&sources), ["a.rs -> b.rs: parse, seconds"]);
}

#[test]
fn imports_that_refer_to_themselves_are_external() {
    assert_eq!(
        imports(&[("lib.rs", "mod a;"), ("a.rs", "use libc; use glob::glob; use other::*; fn f() { libc::abort(); glob::x() }")]),
        [""; 0]
    );
}

#[test]
fn programs_have_module_trees_of_their_own() {
    let sources = [
        ("bin/one.rs", "mod shared; fn main() { shared::run() }"),
        ("bin/shared.rs", "pub fn run() {}"),
        ("bin/two/main.rs", "mod child; struct Own; use child::run;"),
        ("bin/two/child.rs", "pub fn run() { crate::Own; }"),
    ];
    assert_eq!(
        imports(&sources),
        ["bin/one.rs -> bin/shared.rs: run", "bin/two/child.rs -> bin/two/main.rs: Own", "bin/two/main.rs -> bin/two/child.rs: run"]
    );
}

#[test]
fn missing_and_broken_files_are_errors() {
    let tree = |text: &str| Modules::of(&[("lib.rs".to_owned(), text.to_owned())].into());
    assert!(matches!(tree("mod a;"), Err(Error::Missing { expected, .. }) if expected == "a.rs or a/mod.rs"));
    assert!(matches!(tree("fn {"), Err(Error::Syntax { .. })));
}

#[test]
fn crates_depend_only_on_what_their_rules_name() {
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let rules = |name: &str, may: &[&str]| CrateRules {
        name: name.to_owned(),
        may_depend_on: may.iter().map(|&name| name.to_owned()).collect(),
        ..CrateRules::default()
    };
    let check = |on: &[(&str, &[&str])], crates: Vec<CrateRules>| -> Vec<String> {
        let on: BTreeMap<_, _> = on.iter().map(|(name, on)| ((*name).to_owned(), named(on))).collect();
        check::crates(&on, &Rules { crates }).iter().map(|(name, failure)| format!("{name}: {failure}")).collect()
    };
    let tree: &[(&str, &[&str])] = &[("region", &[]), ("config", &["region"]), ("cli", &["config", "region"])];
    let cli = || rules("cli", &["config", "region"]);
    assert_eq!(check(tree, vec![rules("region", &[]), rules("config", &["region"]), cli()]), [""; 0]);
    assert_fails(&check(tree, vec![rules("region", &[]), rules("config", &[]), cli()]), "config: depends on region");
    assert_fails(&check(tree, vec![rules("config", &["region"]), rules("region", &[]), cli()]), "config: `may_depend_on` names region");
    assert_fails(&check(tree, vec![rules("region", &[]), rules("config", &["region"])]), "cli: is not in layers.toml");
    let with_old = vec![rules("region", &[]), rules("old", &[]), rules("config", &["region"]), cli()];
    assert_fails(&check(tree, with_old), "old: is in layers.toml but not in the workspace");
}
