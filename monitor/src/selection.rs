//! The container that an operator names.

use crate::container::Container;
use crate::text::{SHORT_ID, printable, short_id};

/// Reason why a name selects no container.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// No container matches.
    #[error("container {0:?}: expected the ID or name of a container with limits on this host")]
    NoMatch(String),
    /// Several containers match.
    #[error("container {name:?}: expected one match, found {}", candidates.join(", "))]
    Ambiguous {
        /// The given name.
        name: String,
        /// IDs and names of the matching containers.
        candidates: Vec<String>,
    },
}

impl Container {
    fn has_name(&self, name: &str) -> bool {
        let record = &self.record;
        let whole = [&record.namespace, &record.pod, &record.container].map(|part| part.as_deref().unwrap_or_default());
        let [namespace, pod, container] = whole;
        let forms = [pod.to_owned(), container.to_owned(), format!("{namespace}/{pod}"), format!("{pod}/{container}"), whole.join("/")];
        let given = self.engine_name.iter().map(|given| &given.name);
        !name.is_empty() && forms.iter().chain(given).any(|form| form == name)
    }

    /// Describes the container among several: its ID, shortened, and its name, if it has one.
    fn candidate(&self) -> String {
        let (id, name) = (printable(short_id(&self.record.id)), self.name());
        if name == id { name } else { format!("{id} ({name})") }
    }
}

/// Returns the container that `name` selects: an ID, else a prefix of an ID that is at least as long as those that are displayed, else a
/// name (`pod`, `container`, `namespace/pod`, `pod/container`, `namespace/pod/container`, or the engine's) or a shorter prefix of an ID.
/// Names are tenants' choice, so one that is also a short prefix of another container's ID selects neither.
///
/// # Errors
/// No container matches, or several do.
pub fn find<'a>(containers: &'a [Container], name: &str) -> Result<&'a Container, NotFound> {
    let has_prefix = |known: &Container| !name.is_empty() && known.record.id.starts_with(name);
    let is_short_id = |known: &Container| name.len() >= SHORT_ID && has_prefix(known);
    let tests: [&dyn Fn(&Container) -> bool; 3] =
        [&|known| known.record.id == name, &is_short_id, &|known| known.has_name(name) || has_prefix(known)];
    for test in tests {
        let fitting: Vec<&Container> = containers.iter().filter(|known| test(known)).collect();
        match fitting[..] {
            [] => {}
            [only] => return Ok(only),
            _ => {
                let candidates = fitting.iter().map(|known| known.candidate()).collect();
                return Err(NotFound::Ambiguous { name: name.to_owned(), candidates });
            }
        }
    }
    Err(NotFound::NoMatch(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::account::Reader;
    use crate::container::list;
    use crate::engine_names::{Engine, EngineName};
    use crate::test_host::Host;
    use vgpu_oci_hook::state::Record;

    #[test]
    fn containers_are_found_by_id_prefix_and_names() {
        let host = Host::new();
        host.container("abc1", "app", "web-0", &[]);
        host.container("abd2", "side", "web-0", &[]);
        let found = list(host.path(), &mut Reader::default());
        let id = |name: &str| find(&found, name).map(|known| known.record.id.as_str());
        for name in ["abc1", "abc", "app", "web-0/app", "ns/web-0/app"] {
            assert_eq!(id(name), Ok("abc1"), "{name}");
        }
        for name in ["ab", "web-0", "ns/web-0"] {
            assert!(
                matches!(id(name), Err(NotFound::Ambiguous { candidates, .. }) if candidates == ["abc1 (ns/web-0/app)", "abd2 (ns/web-0/side)"]),
                "{name}"
            );
        }
        for name in ["", "/", "x", "ns"] {
            assert_eq!(id(name), Err(NotFound::NoMatch(name.to_owned())), "{name}");
        }
    }

    #[test]
    fn names_of_engines_select_and_are_listed() {
        let host = Host::new();
        let ids = ["a", "b", "d"].map(|first| first.repeat(64));
        ids.iter().for_each(|id| host.container(id, "c", "p", &[]));
        let mut found = list(host.path(), &mut Reader::default());
        for (container, name) in found.iter_mut().zip(["web", "db", "web"]) {
            let record = Record { pod: None, container: None, namespace: None, ..(*container.record).clone() };
            container.record = Arc::new(record);
            container.engine_name = Some(EngineName { name: name.to_owned(), engine: Engine::Docker });
        }
        let id = |name: &str| find(&found, name).map(|known| known.record.id.as_str());
        assert_eq!(id("db"), Ok(ids[1].as_str()));
        let error = id("web").unwrap_err().to_string();
        assert_eq!(error, "container \"web\": expected one match, found aaaaaaaaaaaa (web), dddddddddddd (web)");
        assert_eq!(id("d"), Ok(ids[2].as_str()), "a name is no prefix");
    }

    #[test]
    fn an_id_as_it_is_displayed_wins_over_a_name() {
        let host = Host::new();
        let id = "0123456789abcdef".repeat(4);
        host.container(&id, "app", "web", &[]);
        host.container("evil", "0123456789ab", "x", &[]);
        let found = list(host.path(), &mut Reader::default());
        assert_eq!(find(&found, "0123456789ab").map(|known| &known.record.id), Ok(&id));
        assert!(matches!(find(&found, "0123456789"), Ok(known) if known.record.id == id), "a shorter prefix that is no name");
    }

    #[test]
    fn a_name_that_is_a_prefix_of_another_id_selects_neither() {
        let host = Host::new();
        host.container("abc1", "app", "web-0", &[]);
        host.container("evil", "abc", "x", &[]);
        host.container("worse", "abc1", "x", &[]);
        let found = list(host.path(), &mut Reader::default());
        assert!(
            matches!(find(&found, "abc"), Err(NotFound::Ambiguous { candidates, .. }) if candidates == ["abc1 (ns/web-0/app)", "evil (ns/x/abc)"])
        );
        assert_eq!(find(&found, "abc1").map(|known| known.record.id.as_str()), Ok("abc1"), "a whole ID");
    }
}
