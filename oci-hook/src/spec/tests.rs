use std::path::Path;

use serde_json::json;

use super::*;

#[test]
fn pod_metadata_of_containerd_and_cri_o() {
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
fn the_last_value_of_a_repeated_variable_counts() {
    let spec = Spec(json!({ "process": { "env": ["A=1", "B", "A=2=3"] } }));
    assert_eq!(spec.env(), BTreeMap::from([("A".to_owned(), "2=3".to_owned())]));
}

#[test]
fn malformed_specifications_count_as_empty() {
    for malformed in [json!(null), json!([]), json!({ "annotations": 1, "mounts": {}, "process": { "env": "A=1" }, "linux": null })] {
        let spec = Spec(malformed);
        assert!(spec.annotations().is_empty() && spec.env().is_empty() && crate::privilege::mounts_removable_by(&spec).is_none());
        assert_eq!((spec.mounts().count(), spec.device_paths().count(), spec.hook_paths().count()), (0, 0, 0));
    }
}

#[test]
fn malformed_mounts_are_not_hidden() {
    let spec = Spec(json!({ "mounts": [
        { "destination": "/a", "type": "bind", "source": "/dev/nvidia0", "options": "not a list" },
        { "destination": "/b", "options": ["ro"], "unknown": 1 },
        { "source": "/no/destination" },
    ] }));
    let mounts: Vec<_> = spec.mounts().collect();
    let paths: Vec<_> = mounts.iter().map(|mount| (mount.destination().as_path(), mount.source().as_deref())).collect();
    assert_eq!(paths, [(Path::new("/a"), Some(Path::new("/dev/nvidia0"))), (Path::new("/b"), None)]);
    assert_eq!(mounts[0].typ().as_deref(), Some("bind"));
    assert_eq!(mounts[1].options().as_deref(), Some(&["ro".to_owned()][..]));
    assert_eq!(spec.device_paths().collect::<Vec<_>>(), ["/dev/nvidia0"]);
}
