//! The classification, for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::classes::{Class, Classes};
use crate::symbols::Driver;

/// How many names are of each class.
pub fn summary(driver: &Driver, classes: &Classes) -> String {
    let mut text = String::new();
    for (library, names) in [("libcuda.so.1", &driver.cuda), ("libnvidia-ml.so.1", &driver.nvml)] {
        let mut counts = [0; 4];
        for name in names {
            counts[match classes.of(name) {
                Class::Hooked(_) => 0,
                Class::Harmless(_) => 1,
                Class::Gap(_) => 2,
                Class::Unknown => 3,
            }] += 1;
        }
        let [hooked, harmless, gaps, unknown] = counts;
        let total = names.len();
        _ = writeln!(text, "{library}: {total} names: {hooked} stood in for, {harmless} harmless, {gaps} known gaps, {unknown} unknown");
    }
    text
}

/// What a driver has that another has not.
pub fn difference(old: &Driver, new: &Driver, classes: &Classes) -> String {
    let mut text = String::new();
    for (sign, from, to) in [('+', old, new), ('-', new, old)] {
        for name in to.names().filter(|name| !from.has(name)) {
            let class = match classes.of(name) {
                Class::Hooked(_) => "stood in for".to_owned(),
                Class::Harmless(group) => format!("harmless: {}", group.reason),
                Class::Gap(gap) => format!("a known gap: {}", gap.takes),
                Class::Unknown => "unknown".to_owned(),
            };
            _ = writeln!(text, "{sign} {name}: {class}");
        }
    }
    text
}

fn list(names: &[&String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The page kept in `SURFACE.md`.
pub fn page(driver: &Driver, classes: &Classes) -> String {
    let mut text = "# Every function of the driver, and what vgpu does about it\n\n\
        Written by `cargo run -p vgpu-surface -- table`; a test compares it with `preload/src/table.rs`, `harmless.toml` and `gaps.toml`.\n\n"
        .to_owned();
    for line in summary(driver, classes).lines() {
        _ = writeln!(text, "- {line}");
    }
    text += "\n## Known gaps\n\n| names | take or tell | consequence | what would close it |\n|---|---|---|---|\n";
    for gap in &classes.gaps {
        let names: Vec<&String> = gap.names.iter().filter(|name| driver.has(name)).collect();
        _ = writeln!(text, "| {} | {} | {} | {} |", list(&names), gap.takes, gap.consequence, gap.closing);
    }
    text += "\n## Stood in for\n\n| by | names |\n|---|---|\n";
    let mut handlers: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for name in driver.names() {
        if let Class::Hooked(handler) = classes.of(name) {
            handlers.entry(handler).or_default().push(name);
        }
    }
    for (handler, names) in handlers {
        _ = writeln!(text, "| `{handler}` | {} |", list(&names));
    }
    text += "\n## Harmless\n\n| why | names |\n|---|---|\n";
    for group in &classes.harmless {
        let names: Vec<&String> = group.names.iter().filter(|name| driver.has(name)).collect();
        _ = writeln!(text, "| {} | {} |", group.reason, list(&names));
    }
    text
}
