//! The chapter "reference" has every flag, key, variable, annotation and metric.

use vgpu_architecture::workspace;
use vgpu_book::generated;
use vgpu_book::literals::{Literals, of_package, shipped};
use vgpu_book::pages::{chapter, code, root};

#[test]
fn generated_pages_are_current() {
    for (name, text) in generated::pages() {
        let committed = std::fs::read_to_string(root().join(name)).unwrap_or_default();
        assert!(committed == text, "{name} is out of date: run cargo run -p vgpu-book");
    }
}

/// Beginnings of names that look like variables and are none: constants of seccomp and of cargo.
const NO_VARIABLES: [&str; 2] = ["SCMP_", "CARGO_"];

/// Returns whether a literal has the form of a variable: capital letters, with an underscore between them.
fn is_variable(text: &str) -> bool {
    let is_capital = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let has_form = text.bytes().all(is_capital) && text.trim_matches('_') == text && text.contains('_');
    has_form && !NO_VARIABLES.iter().any(|prefix| text.starts_with(prefix))
}

/// Returns whether a literal has the form of a Kubernetes key: a domain, a slash, a name.
fn is_key(text: &str) -> bool {
    let is_name = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '*') && !part.contains([' ', '{', '/', ';']);
    text.split_once('/').is_some_and(|(domain, name)| domain.contains('.') && is_name(domain) && is_name(name))
}

#[test]
fn every_variable_and_key_of_the_code_stands_in_the_reference() {
    let packages = workspace::read(&root()).unwrap_or_else(|error| panic!("{error}"));
    let texts: Vec<String> =
        chapter("reference").iter().flat_map(|page| page.lines().flat_map(|line| code(&line)).collect::<Vec<_>>()).collect();
    let (mut found, mut missing) = (0, vec![]);
    for package in shipped(&packages) {
        for (file, literals) in of_package(package, Literals::default()) {
            for literal in literals.into_iter().filter(|text| is_variable(text) || is_key(text)) {
                found += 1;
                if !texts.contains(&literal) {
                    missing.push(format!("{}/{file}: {literal}", package.name));
                }
            }
        }
    }
    assert!(found > 50, "only {found} names were found");
    assert!(missing.is_empty(), "expected these names as code in docs/reference:\n{}", missing.join("\n"));
}

#[test]
fn names_are_told_from_other_literals() {
    for text in ["CUDA_DEVICE_MEMORY_LIMIT", "VGPU_LOG", "NO_COLOR"] {
        assert!(is_variable(text), "{text}");
    }
    for text in ["nvidia.com/gpumem", "hami.io/*", "gpu.vgpu/gone"] {
        assert!(is_key(text), "{text}");
    }
    for text in ["GLIBC_", "SCMP_ACT_KILL", "OK", "text/plain; version=0.0.4", "/etc/x.y/z", "{}.x/y", "a b.c/d"] {
        assert!(!is_variable(text) && !is_key(text), "{text}");
    }
}

#[test]
fn metrics_that_the_book_recommends_exist() {
    let known = chapter("reference").into_iter().find(|page| page.name == "reference/metrics.md").expect("the page of the metrics");
    let known: Vec<String> = known.lines().flat_map(|line| code(&line)).collect();
    let mut found = 0;
    for page in chapter("operate") {
        for word in page.text.split(|c: char| !c.is_ascii_lowercase() && c != '_') {
            if (word.starts_with("vgpu_") || word.starts_with("hami_")) && !word.ends_with('_') {
                found += 1;
                assert!(known.iter().any(|metric| metric == word), "{}: {word}: expected a metric of docs/reference/metrics.md", page.name);
            }
        }
    }
    assert!(found > 10, "only {found} metrics were found");
}
