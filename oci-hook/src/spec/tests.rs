use std::path::Path;

use serde_json::json;

use super::*;

/// What the CRI plugin of containerd says about a container.
fn containerds() -> Value {
    json!({
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
        "io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.sandbox-namespace": "ns", "io.kubernetes.cri.sandbox-uid": "u"
    })
}

/// What CRI-O says about a container.
fn crios() -> Value {
    json!({
        "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "pod",
        "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u"
    })
}

fn of(engine: Engine, annotations: Value) -> Spec {
    Spec { json: json!({ "annotations": annotations }), engine }
}

#[test]
fn pod_metadata_of_containerd_and_cri_o() {
    for spec in [of(Engine::Containerd, containerds()), of(Engine::Crio, crios())] {
        assert!(!spec.is_sandbox("0a1b"));
        assert_eq!(spec.container_name(), Some("main"));
        assert_eq!((spec.pod_name(), spec.namespace(), spec.pod_uid()), (Some("pod"), Some("ns"), Some("u")));
    }
}

/// CRI-O sets its key before the annotations that its client gives a container.
#[test]
fn a_sandbox_is_confirmed_by_its_id() {
    for (engine, kind, sandbox_id) in [
        (Engine::Containerd, "io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"),
        (Engine::Crio, "io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID"),
    ] {
        let spec = of(engine, json!({ kind: "sandbox", sandbox_id: "0a1b" }));
        assert!(spec.is_sandbox("0a1b"));
        assert!(!spec.is_sandbox("2c3d"), "{engine:?}: a container of the sandbox");
        assert!(!of(engine, json!({ kind: "container", sandbox_id: "0a1b" })).is_sandbox("0a1b"));
        assert!(!of(engine, json!({ kind: "sandbox" })).is_sandbox("0a1b"));
        assert!(!of(engine, json!({})).is_sandbox(""));
    }
}

#[test]
fn keys_of_another_engine_are_not_believed() {
    let merged = |own: Value, forged: Value| {
        let (Value::Object(own), Value::Object(forged)) = (own, forged) else { panic!("objects") };
        Value::Object(forged.into_iter().chain(own).collect())
    };
    let forged_containerd = json!({
        "io.kubernetes.cri.container-type": "sandbox", "io.kubernetes.cri.sandbox-id": "0a1b",
        "io.kubernetes.cri.sandbox-namespace": "kube-system"
    });
    let forged_crio = json!({
        "io.kubernetes.cri-o.ContainerType": "sandbox", "io.kubernetes.cri-o.SandboxID": "0a1b", "io.kubernetes.pod.namespace": "kube-system"
    });
    for (spec, namespace) in [
        (of(Engine::Crio, merged(crios(), forged_containerd.clone())), Some("ns")),
        (of(Engine::Containerd, merged(containerds(), forged_crio.clone())), Some("ns")),
        (of(Engine::Crio, forged_containerd.clone()), None),
        (of(Engine::Containerd, forged_crio.clone()), None),
        (of(Engine::Other, forged_containerd), None),
        (of(Engine::Other, forged_crio), None),
    ] {
        assert!(!spec.is_sandbox("0a1b"), "{spec:?}");
        assert_eq!(spec.namespace(), namespace, "{spec:?}");
    }
}

#[test]
fn the_last_value_of_a_repeated_variable_counts() {
    let spec = Spec::from(json!({ "process": { "env": ["A=1", "B", "A=2=3"] } }));
    assert_eq!(spec.env(), BTreeMap::from([("A".to_owned(), "2=3".to_owned())]));
}

#[test]
fn malformed_specifications_count_as_empty() {
    for malformed in [json!(null), json!([]), json!({ "annotations": 1, "mounts": {}, "process": { "env": "A=1" }, "linux": null })] {
        let spec = Spec::from(malformed);
        assert!(spec.annotations().is_empty() && spec.env().is_empty() && crate::privilege::limits_evadable_by(&spec).is_none());
        assert_eq!((spec.mounts().count(), spec.device_paths().count(), spec.hook_paths().count()), (0, 0, 0));
    }
}

#[test]
fn malformed_mounts_are_not_hidden() {
    let spec = Spec::from(json!({ "mounts": [
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
