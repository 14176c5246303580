//! The chart's role allows exactly the requests that the plugin makes.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::api_server::{Cluster, claim_path};
use crate::common::gpus::Gpus;
use crate::common::kubelet::Kubelet;
use crate::common::plugin::{Node, Threaded, allocate};
use crate::common::wait_for;

/// Returns the rules of the plugin's role in the chart, as `verb resource`.
fn allowed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/helm/vgpu/templates/dra.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let list = |line: &str| line.split_once('[').unwrap().1.trim_end_matches(']').split(", ").map(str::to_owned).collect::<Vec<_>>();
    let (mut all, mut resources) = (BTreeSet::new(), Vec::new());
    let rules = text.split("kind: ClusterRole\n").nth(1).unwrap().split("---").next().unwrap();
    for line in rules.lines().map(str::trim) {
        if line.starts_with("resources:") {
            resources = list(line);
        } else if line.starts_with("verbs:") {
            all.extend(resources.iter().flat_map(|resource| list(line).into_iter().map(move |verb| format!("{verb} {resource}"))));
        }
    }
    all
}

/// Converts a line of the API server's log to the form `verb resource`.
fn rule_of(line: &str) -> String {
    let (method, path) = line.split_once(' ').unwrap();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != "namespaces" && *part != "team").collect();
    let known = ["resourceslices", "resourceclaims", "nodes"];
    let at = parts.iter().position(|part| known.contains(part)).unwrap_or_else(|| panic!("{line}"));
    let named = parts.len() > at + 1;
    let verb = match (method, named) {
        ("WATCH", _) => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("DELETE", _) => "delete",
        _ => panic!("{line}"),
    };
    format!("{verb} {}", parts[at])
}

#[test]
fn role_has_exactly_the_rules_that_are_used() {
    let (node, cluster, gpus) = (Node::default(), Cluster::start(), Gpus::with([0]));
    {
        let _plugin = Threaded::start(&node, &cluster, gpus.clone());
        let kubelet = Kubelet::register(&node.path("registry"));
        allocate(&cluster, "a", &[("gpu", 0, "10Gi", "30")]);
        wait_for("a device", || (cluster.devices().len() == 1).then_some(()));
        kubelet.prepare("a").unwrap();
        gpus.set([0, 1]);
        wait_for("two devices", || (cluster.devices().len() == 2).then_some(()));
        kubelet.unprepare("a").unwrap();
        gpus.set([]);
        wait_for("no slice", || cluster.slices().is_empty().then_some(()));
    }
    cluster.remove(&claim_path("a"));
    let used: BTreeSet<String> = cluster.log().iter().map(|line| rule_of(line)).collect();
    let mut allowed = allowed();
    assert!(used.is_subset(&allowed), "{used:?}");
    // Roles that may list slices may also get them, by convention.
    assert!(allowed.remove("get resourceslices"));
    assert_eq!(used, allowed);
}
