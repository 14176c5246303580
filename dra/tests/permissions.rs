//! What the programs do in a cluster is what the chart lets them do, and nothing is let that they do not do.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::api_server::{Cluster, claim_path};
use crate::common::gpus::Gpus;
use crate::common::kubelet::Kubelet;
use crate::common::plugin::{Node, Threaded, allocate};
use crate::common::wait_for;

/// The rules of the plugin's role in the chart: `verb resource`.
fn allowed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/helm/vgpu/templates/dra.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let list = |line: &str| line.split_once('[').unwrap().1.trim_end_matches(']').split(", ").map(str::to_owned).collect::<Vec<_>>();
    let (mut all, mut resources) = (BTreeSet::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("resources:") {
            resources = list(line);
        } else if line.starts_with("verbs:") {
            all.extend(resources.iter().flat_map(|resource| list(line).into_iter().map(move |verb| format!("{verb} {resource}"))));
        }
    }
    all
}

/// What a request is in terms of roles.
fn asked(line: &str) -> String {
    let (method, path) = line.split_once(' ').unwrap();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != "namespaces" && *part != "team").collect();
    let known = ["resourceslices", "resourceclaims", "nodes"];
    let at = parts.iter().position(|part| known.contains(part)).unwrap_or_else(|| panic!("{line}"));
    let named = parts.len() > at + 1;
    let verb = match (method, named) {
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
fn the_role_is_just_what_is_needed() {
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
    let done: BTreeSet<String> = cluster.log().iter().map(|line| asked(line)).collect();
    let mut allowed = allowed();
    assert!(done.is_subset(&allowed), "{done:?}");
    // A watch is a list to who looks at the path alone, and roles for slices have it by custom that who lists may get.
    for more in ["watch resourceslices", "get resourceslices"] {
        assert!(allowed.remove(more), "{more}");
    }
    assert_eq!(done, allowed);
}
