//! Compares a workspace with its rules.

use std::collections::{BTreeMap, BTreeSet};

use crate::failure::Failure;
use crate::graph::Graph;
use crate::rules::{CrateRules, Rules, covers};

/// Checks the circles and layers of one crate.
pub fn files(graph: &Graph, rules: &CrateRules) -> Vec<Failure> {
    let mut failures = circles(graph);
    failures.extend(layers(graph, &rules.layers));
    failures
}

/// Checks which crate depends on which. `dependencies` has every crate of the workspace with the crates of the workspace that its
/// manifest names.
pub fn crates(dependencies: &BTreeMap<String, BTreeSet<String>>, rules: &Rules) -> Vec<(String, Failure)> {
    let mut failures = vec![];
    let mut lower: BTreeSet<&str> = BTreeSet::new();
    for CrateRules { name, may_depend_on, .. } in &rules.crates {
        let not_lower = may_depend_on.iter().filter(|other| !lower.contains(other.as_str()));
        failures.extend(not_lower.map(|other| (name.clone(), Failure::NotLower(other.clone()))));
        match dependencies.get(name) {
            Some(named) => {
                let refused = named.iter().filter(|other| !may_depend_on.contains(other));
                failures.extend(refused.map(|other| (name.clone(), Failure::Dependency(other.clone()))));
            }
            None => failures.push((name.clone(), Failure::NoCrate)),
        }
        lower.insert(name);
    }
    let unlisted = dependencies.keys().filter(|name| !lower.contains(name.as_str()));
    failures.extend(unlisted.map(|name| (name.clone(), Failure::UnlistedCrate)));
    failures
}

fn circles(graph: &Graph) -> Vec<Failure> {
    let failure = |circle: &BTreeSet<&str>| Failure::Circle {
        files: circle.iter().map(|&file| file.to_owned()).collect(),
        way: graph.shortest_way_round(circle),
    };
    graph.circles().iter().map(failure).collect()
}

fn layers(graph: &Graph, layers: &[Vec<String>]) -> Vec<Failure> {
    if layers.is_empty() {
        return vec![];
    }
    let mut failures = vec![];
    let mut layer_of_entry: BTreeMap<&str, usize> = BTreeMap::new();
    for (layer, entries) in layers.iter().enumerate() {
        for entry in entries {
            if layer_of_entry.insert(entry, layer).is_some() {
                failures.push(Failure::TwoLayers(entry.clone()));
            }
            if !graph.files().any(|file| covers(entry, file)) {
                failures.push(Failure::NoFile(entry.clone()));
            }
        }
    }
    // A folder may have files in other layers: the longest entry decides.
    let layer_of = |file: &str| {
        let covering = layer_of_entry.iter().filter(|(entry, _)| covers(entry, file));
        covering.max_by_key(|(entry, _)| entry.len()).map(|(_, &layer)| layer)
    };
    failures.extend(graph.files().filter(|file| layer_of(file).is_none()).map(|file| Failure::NoLayer(file.to_owned())));
    for edge in graph.edges() {
        if let (Some(from), Some(to)) = (layer_of(&edge.from), layer_of(&edge.to))
            && from < to
        {
            failures.push(Failure::Upward { edge, from_layer: from + 1, to_layer: to + 1 });
        }
    }
    failures
}
