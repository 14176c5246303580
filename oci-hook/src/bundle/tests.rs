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
        assert!(spec.annotations().is_empty() && spec.env().is_empty() && spec.undone_by().is_none());
        assert_eq!((spec.mounts().count(), spec.device_paths().count(), spec.hook_paths().count()), (0, 0, 0));
    }
}

#[test]
fn by_what_mounts_can_be_undone() {
    let volume = |kind: &str, place: &str, source: &str| {
        Spec(json!({
            "annotations": { "io.kubernetes.cri.sandbox-uid": "uid", "io.kubernetes.cri.container-name": "main" },
            "mounts": [{ "destination": "/etc/hosts", "type": "bind", "source": "/h" }, { "destination": place, "type": kind, "source": source }],
        }))
    };
    for (kind, place, source, expected) in [
        ("bind", "/etc/", "/v", Some("a volume over /etc")),
        ("nfs", "/usr/local", "/v", Some("a volume over /usr/local")),
        ("bind", "/usr/lib/../local/vgpu", "/v", Some("a volume over /usr/local/vgpu")),
        ("bind", "/usr/local/vgpu", "/host/vgpu/containers/uid_main", None),
        ("tmpfs", "/etc", "tmpfs", None),
        ("bind", "/etc/ld.so.preload", "/v", None),
        ("bind", "/usr/local/lib", "/v", None),
    ] {
        assert_eq!(volume(kind, place, source).undone_by().as_deref(), expected, "{kind} {place}");
    }
    let privileged = Spec(json!({ "process": { "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } } }));
    assert_eq!(privileged.undone_by().as_deref(), Some("CAP_SYS_ADMIN"));
}

#[test]
fn the_root_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        Bundle::load(dir.path(), None)
    };
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(load(r#"{"root":{"path":"rootfs"}}"#).unwrap().rootfs().unwrap(), real.join("rootfs"));
    assert_eq!(load(r#"{"root":{"path":"/r"}}"#).unwrap().rootfs().unwrap(), Path::new("/r"));
    assert!(load("{}").unwrap().rootfs().unwrap_err().to_string().contains("root.path"));
    assert!(load("{").unwrap_err().to_string().contains("config.json: EOF"));
    assert!(Bundle::load(&dir.path().join("no"), None).unwrap_err().to_string().contains("cannot open the bundle"));
}
