use serde_json::json;

use super::*;

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
        assert_eq!(undone_by(&volume(kind, place, source)).as_deref(), expected, "{kind} {place}");
    }
    let privileged = Spec(json!({ "process": { "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } } }));
    assert_eq!(undone_by(&privileged).as_deref(), Some("CAP_SYS_ADMIN"));
}
