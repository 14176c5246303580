//! What is done about each name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::symbols::{self, Driver};

/// Functions that need nothing, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Harmless {
    /// Why.
    pub reason: String,
    /// Every name in full: a pattern could hide a function of a later driver.
    pub names: Vec<String>,
}

/// Functions that take memory or time, or tell of them, and are let through all the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// What they do that would have to be met.
    pub takes: String,
    /// What follows from letting them through.
    pub consequence: String,
    /// What it would take to close it.
    pub closing: String,
    /// Every name in full.
    pub names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HarmlessFile {
    group: Vec<Harmless>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GapFile {
    gap: Vec<Gap>,
}

/// What is done about one name.
#[derive(Clone, Copy, Debug)]
pub enum Class<'a> {
    /// The library stands in for it, with this handler where the sources tell.
    Hooked(&'a str),
    /// It needs nothing.
    Harmless(&'a Harmless),
    /// It is let through, and that is known.
    Gap(&'a Gap),
    /// Nobody has looked at it.
    Unknown,
}

/// What is known of all names.
#[derive(Debug)]
pub struct Classes {
    /// Names that the library stands in for, with their handlers; empty where they were read from a build.
    pub hooked: BTreeMap<String, String>,
    /// Groups of harmless names.
    pub harmless: Vec<Harmless>,
    /// Known gaps.
    pub gaps: Vec<Gap>,
}

impl Classes {
    /// Reads the classification in `home`, and what is stood in for from a built library, else from its sources.
    pub fn read(home: &Path, library: Option<&Path>) -> Result<Self, String> {
        let text = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let hooked = match library {
            Some(library) => symbols::exports(library)?.into_iter().map(|name| (name, String::new())).collect(),
            None => in_table(&text(&home.join("../../preload/src/table.rs"))?),
        };
        let problem = |file: &str, error: toml_edit::de::Error| format!("{file}: {error}");
        let harmless: HarmlessFile =
            toml_edit::de::from_str(&text(&home.join("harmless.toml"))?).map_err(|error| problem("harmless.toml", error))?;
        let gaps: GapFile = toml_edit::de::from_str(&text(&home.join("gaps.toml"))?).map_err(|error| problem("gaps.toml", error))?;
        Ok(Self { hooked, harmless: harmless.group, gaps: gaps.gap })
    }

    /// What is done about a name.
    pub fn of(&self, name: &str) -> Class<'_> {
        let holds = |names: &[String]| names.iter().any(|known| known == name);
        if let Some(handler) = self.hooked.get(name) {
            Class::Hooked(handler)
        } else if let Some(gap) = self.gaps.iter().find(|gap| holds(&gap.names)) {
            Class::Gap(gap)
        } else {
            self.harmless.iter().find(|group| holds(&group.names)).map_or(Class::Unknown, Class::Harmless)
        }
    }

    /// What is wrong: names of `driver` that are unknown, and entries here that contradict each other or name what `kept`, the driver
    /// that they were written for, does not export.
    pub fn problems(&self, driver: &Driver, kept: &Driver) -> Vec<String> {
        let mut problems: Vec<String> =
            driver.names().filter(|name| matches!(self.of(name), Class::Unknown)).map(|name| format!("unknown: {name}")).collect();
        let mut seen = BTreeSet::new();
        let listed = self.harmless.iter().flat_map(|group| &group.names).chain(self.gaps.iter().flat_map(|gap| &gap.names));
        for name in listed {
            if !seen.insert(name) {
                problems.push(format!("listed twice: {name}"));
            }
            if self.hooked.contains_key(name) {
                problems.push(format!("listed, but stood in for: {name}"));
            }
            if !kept.has(name) {
                problems.push(format!("listed, but not exported by the kept driver: {name}"));
            }
        }
        problems
    }
}

/// The names in the library's table, each with its handler: rows `Library handler => (arguments) [trace]: names | per-thread names;` between
/// `$consumer! {` and `}`.
fn in_table(source: &str) -> BTreeMap<String, String> {
    let body = source.split_once("$consumer! {\n").and_then(|(_, rest)| rest.split_once("\n        }\n")).map_or("", |(body, _)| body);
    let lines: String = body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join(" ");
    let mut names = BTreeMap::new();
    for entry in lines.split(';') {
        let (Some((head, _)), Some((_, list))) = (entry.split_once("=>"), entry.rsplit_once(':')) else { continue };
        let handler = head.split_whitespace().nth(1).unwrap_or_default();
        let handler = handler.split("::<").next().unwrap_or_default();
        names.extend(list.split([',', '|']).map(|name| (name.trim().to_owned(), handler.to_owned())));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let text = "x\n        $consumer! {\n    // What: it; is.\n    Cuda a::b::<OWN> => (x: *const c_char, y: i32) [g(x)]:\n        cuOne | cuOne_ptsz;\n    \
                    Nvml c::d => (): nvmlTwo;\n    Cuda e::f => () [g::h(x)]: cuThree;\n        }\n    };\n";
        let names = in_table(text);
        let pairs: Vec<(&str, &str)> = names.iter().map(|(name, handler)| (name.as_str(), handler.as_str())).collect();
        assert_eq!(pairs, [("cuOne", "a::b"), ("cuOne_ptsz", "a::b"), ("cuThree", "e::f"), ("nvmlTwo", "c::d")]);
    }

    #[test]
    fn entries_that_contradict_are_problems() {
        let driver = Driver { cuda: ["cuOne", "cuTwo"].map(str::to_owned).into(), nvml: BTreeSet::new() };
        let classes = Classes {
            hooked: [("cuOne".to_owned(), "a".to_owned())].into(),
            harmless: vec![Harmless { reason: String::new(), names: ["cuOne", "cuTwo", "cuTwo", "cuGone"].map(str::to_owned).into() }],
            gaps: Vec::new(),
        };
        let problems = classes.problems(&driver, &driver);
        assert_eq!(
            problems,
            ["listed, but stood in for: cuOne", "listed twice: cuTwo", "listed, but not exported by the kept driver: cuGone"]
        );
    }
}
