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

/// Words of the dialects that look like names and are values.
const NO_NAMES: [&str; 3] = ["TRUE", "FALSE", "NVIDIA"];

/// Returns whether a literal has the form of a variable without an underscore or of a key without a domain.
fn is_bare_name(text: &str) -> bool {
    let has_only = |is_one: fn(u8) -> bool| text.len() > 3 && text.bytes().all(is_one);
    let is_key = || has_only(|byte| byte.is_ascii_lowercase() || byte == b'-') && text.contains('-') && text.trim_matches('-') == text;
    (has_only(|byte| byte.is_ascii_uppercase()) || is_key()) && !NO_NAMES.contains(&text)
}

#[test]
fn every_name_of_the_dialects_stands_in_the_reference() {
    let packages = workspace::read(&root()).unwrap_or_else(|error| panic!("{error}"));
    let page = chapter("reference").into_iter().find(|page| page.name == "reference/requests.md").expect("the page of requests");
    let texts: Vec<String> = page.lines().flat_map(|line| code(&line)).collect();
    let package = packages.iter().find(|package| package.name == "vgpu-config").expect("the package of the dialects");
    let dialects = of_package(package, Literals::default()).into_iter().filter(|(file, _)| file.starts_with("dialect"));
    let names: Vec<String> = dialects.flat_map(|(_, literals)| literals).filter(|text| is_bare_name(text)).collect();
    for name in ["PFLOG", "gpu-fraction"] {
        assert!(names.iter().any(|found| found == name), "expected {name} among the names of the dialects, found {names:?}");
    }
    let missing: Vec<&String> = names.iter().filter(|name| !texts.contains(name)).collect();
    assert!(missing.is_empty(), "expected these names as code in docs/reference/requests.md: {missing:?}");
}

#[test]
fn every_flag_of_the_runtime_and_the_hook_stands_in_the_reference() {
    let packages = workspace::read(&root()).unwrap_or_else(|error| panic!("{error}"));
    let page = chapter("reference").into_iter().find(|page| page.name == "reference/programs.md").expect("the page of the programs");
    let texts = page.pieces();
    let package = packages.iter().find(|package| package.name == "vgpu-oci-hook").expect("the package of both");
    let literals: Vec<String> = of_package(package, Literals::default()).into_values().flatten().collect();
    let flags: Vec<&str> = literals.iter().filter(|text| text.len() > 2 && text.starts_with("--")).map(String::as_str).collect();
    assert!(flags.len() > 5, "only {flags:?} were found");
    let stands = |flag: &&str| texts.iter().any(|text| text.split([' ', '[', ']', '|']).any(|word| word == flag.trim_end_matches('=')));
    let missing: Vec<&str> = flags.into_iter().filter(|flag| !stands(flag)).collect();
    assert!(missing.is_empty(), "expected these flags as code in docs/reference/programs.md: {missing:?}");
}

#[test]
fn names_are_told_from_other_literals() {
    for text in ["CUDA_DEVICE_MEMORY_LIMIT", "VGPU_LOG", "NO_COLOR"] {
        assert!(is_variable(text), "{text}");
    }
    for text in ["nvidia.com/gpumem", "hami.io/*", "gpu.vgpu/gone"] {
        assert!(is_key(text), "{text}");
    }
    for text in ["PFLOG", "gpu-fraction", "gpu-fraction-container-name"] {
        assert!(is_bare_name(text), "{text}");
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
