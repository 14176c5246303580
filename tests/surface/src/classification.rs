//! Classification of function names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::symbols::{self, Driver};

/// Group of functions that need no hook.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Harmless {
    /// Reason why they need no hook.
    pub reason: String,
    /// Full names: a pattern could hide a function of a later driver.
    pub names: Vec<String>,
}

/// Group of functions that use or report memory or time and are not hooked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Effect that is not covered.
    pub effect: String,
    /// Consequence of not hooking them.
    pub consequence: String,
    /// Work needed to close the gap.
    pub remedy: String,
    /// Full names.
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

/// Class of one name.
#[derive(Clone, Copy, Debug)]
pub enum Class<'a> {
    /// Hooked by the library, with the handler; empty if read from a build.
    Hooked(&'a str),
    /// Needs no hook.
    Harmless(&'a Harmless),
    /// Known gap.
    Gap(&'a Gap),
    /// Not classified.
    Unknown,
}

/// Classification of all names.
#[derive(Debug)]
pub struct Classification {
    /// Hooked names with their handlers; handlers are empty if read from a build.
    pub hooked: BTreeMap<String, String>,
    /// Groups of harmless names.
    pub harmless: Vec<Harmless>,
    /// Known gaps.
    pub gaps: Vec<Gap>,
}

impl Classification {
    /// Reads the classification in `home`. Reads the hooked names from a built library if given, else from the sources.
    pub fn read(home: &Path, library: Option<&Path>) -> Result<Self, String> {
        let text = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let hooked = match library {
            Some(library) => symbols::exported_names(library)?.into_iter().map(|name| (name, String::new())).collect(),
            None => {
                let mut hooked = BTreeMap::new();
                for file in ["table.rs", "table/mapped.rs", "table/nvml.rs"] {
                    hooked.extend(parse_hook_table(&text(&home.join("../../preload/src").join(file))?));
                }
                hooked
            }
        };
        let problem = |file: &str, error: toml_edit::de::Error| format!("{file}: {error}");
        let harmless: HarmlessFile =
            toml_edit::de::from_str(&text(&home.join("harmless.toml"))?).map_err(|error| problem("harmless.toml", error))?;
        let gaps: GapFile = toml_edit::de::from_str(&text(&home.join("gaps.toml"))?).map_err(|error| problem("gaps.toml", error))?;
        Ok(Self { hooked, harmless: harmless.group, gaps: gaps.gap })
    }

    /// Returns the class of a name.
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

    /// Returns all problems: unknown names of `driver`, entries that contradict each other, and listed names that `reference`, the driver
    /// that the lists were written for, does not export.
    pub fn problems(&self, driver: &Driver, reference: &Driver) -> Vec<String> {
        let mut problems: Vec<String> =
            driver.names().filter(|name| matches!(self.of(name), Class::Unknown)).map(|name| format!("unknown: {name}")).collect();
        let mut seen = BTreeSet::new();
        let listed = self.harmless.iter().flat_map(|group| &group.names).chain(self.gaps.iter().flat_map(|gap| &gap.names));
        for name in listed {
            if !seen.insert(name) {
                problems.push(format!("listed twice: {name}"));
            }
            if self.hooked.contains_key(name) {
                problems.push(format!("listed, but hooked: {name}"));
            }
            if !reference.exports(name) {
                problems.push(format!("listed, but not exported by the reference driver: {name}"));
            }
        }
        problems
    }
}

/// Ends of the lines after which the rows of the library's table begin.
const BEGINS: [&str; 3] = ["! { $consumer\n", "$($rows)*\n", "$consumer! {\n"];

/// Parses the names and handlers in a file of the library's table: rows `Library handler => (arguments) [trace]: names | per-thread names;`
/// between such a line and `}`.
fn parse_hook_table(source: &str) -> BTreeMap<String, String> {
    let body = BEGINS
        .iter()
        .find_map(|begin| source.split_once(begin))
        .and_then(|(_, rest)| rest.split_once("\n        }\n"))
        .map_or("", |(body, _)| body);
    let lines: String = body.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join(" ");
    let mut names = BTreeMap::new();
    for entry in lines.split(';') {
        let (Some((head, _)), Some((_, list))) = (entry.split_once("=>"), entry.rsplit_once(':')) else { continue };
        let handler = head.split_whitespace().nth(1).unwrap_or_default();
        let handler = handler.split("::<").next().unwrap_or_default().split('[').next().unwrap_or_default();
        names.extend(list.split([',', '|']).map(|name| (name.trim().to_owned(), handler.to_owned())));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_table_is_parsed() {
        let text = "x\n        $consumer! {\n    // What: it; is.\n    Cuda a::b::<OWN> => (x: *const c_char, y: i32) [g(x)]:\n        cuOne | cuOne_ptsz;\n    \
                    Nvml c::d => (): nvmlTwo;\n    Cuda e::f[x, 0] => () [g::h(x)]: cuThree;\n        }\n    };\n";
        let names = parse_hook_table(text);
        let pairs: Vec<(&str, &str)> = names.iter().map(|(name, handler)| (name.as_str(), handler.as_str())).collect();
        assert_eq!(pairs, [("cuOne", "a::b"), ("cuOne_ptsz", "a::b"), ("cuThree", "e::f"), ("nvmlTwo", "c::d")]);
    }

    #[test]
    fn contradictory_entries_are_problems() {
        let driver = Driver { cuda: ["cuOne", "cuTwo"].map(str::to_owned).into(), nvml: BTreeSet::new(), since: BTreeMap::new() };
        let classification = Classification {
            hooked: [("cuOne".to_owned(), "a".to_owned())].into(),
            harmless: vec![Harmless { reason: String::new(), names: ["cuOne", "cuTwo", "cuTwo", "cuGone"].map(str::to_owned).into() }],
            gaps: Vec::new(),
        };
        let problems = classification.problems(&driver, &driver);
        assert_eq!(
            problems,
            ["listed, but hooked: cuOne", "listed twice: cuTwo", "listed, but not exported by the reference driver: cuGone"]
        );
    }
}
