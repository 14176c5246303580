//! This workspace follows the rules in `layers.toml`.

use std::path::Path;

use vgpu_architecture::modules::Modules;
use vgpu_architecture::rules::Rules;
use vgpu_architecture::workspace::{self, Package};
use vgpu_architecture::{check, resolve};

fn rules() -> Rules {
    workspace::toml(&Path::new(env!("CARGO_MANIFEST_DIR")).join("layers.toml")).unwrap_or_else(|error| panic!("{error}"))
}

fn packages() -> Vec<Package> {
    workspace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap_or_else(|error| panic!("{error}"))
}

fn assert_empty(failures: &[String]) {
    assert!(failures.is_empty(), "the architecture in tests/architecture/layers.toml is not kept:\n\n{}\n", failures.join("\n\n"));
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let dependencies = packages().into_iter().map(|package| (package.name, package.dependencies)).collect();
    let failures: Vec<String> = check::crates(&dependencies, &rules()).iter().map(|(name, failure)| format!("{name}: {failure}")).collect();
    assert_empty(&failures);
}

#[test]
fn files_import_downward_and_without_circles() {
    let rules = rules();
    let mut failures = vec![];
    for Package { name, sources, .. } in packages() {
        let Some(rules) = rules.crates.iter().find(|rules| rules.name == name) else { continue };
        match Modules::of(&sources) {
            Ok(modules) => {
                failures.extend(check::files(&resolve::graph(&modules), rules).iter().map(|failure| format!("{name}: {failure}")));
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert_empty(&failures);
}
