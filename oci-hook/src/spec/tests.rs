//! What is found in specifications.

use serde_json::json;

use super::*;

#[test]
fn what_a_pods_container_says_of_itself() {
    let of = |annotations: Value| Spec(json!({ "annotations": annotations }));
    let containerd = of(json!({
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
        "io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.sandbox-namespace": "ns", "io.kubernetes.cri.sandbox-uid": "u"
    }));
    let crio = of(json!({
        "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "pod",
        "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u"
    }));
    for spec in [containerd, crio] {
        assert!(!spec.is_sandbox());
        assert_eq!(spec.container_name(), Some("main"));
        assert_eq!((spec.pod_name(), spec.namespace(), spec.pod_uid()), (Some("pod"), Some("ns"), Some("u")));
    }
    assert!(of(json!({ "io.kubernetes.cri.container-type": "sandbox" })).is_sandbox());
    assert!(of(json!({ "io.kubernetes.cri-o.ContainerType": "sandbox" })).is_sandbox());
    assert!(!Spec(json!({})).is_sandbox());
}

#[test]
fn of_a_repeated_variable_the_last_counts() {
    let spec = Spec(json!({ "process": { "env": ["A=1", "B", "A=2=3"] } }));
    assert_eq!(spec.env(), BTreeMap::from([("A".to_owned(), "2=3".to_owned())]));
}

#[test]
fn strange_specifications_are_empty_ones() {
    for strange in [json!(null), json!([]), json!({ "annotations": 1, "mounts": {}, "process": { "env": "A=1" }, "linux": null })] {
        let spec = Spec(strange);
        assert!(spec.annotations().is_empty() && spec.env().is_empty() && crate::escape::undone_by(&spec).is_none());
        assert_eq!((spec.mounts().count(), spec.device_paths().count(), spec.hook_paths().count()), (0, 0, 0));
    }
}
