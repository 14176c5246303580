use serde_json::json;

use super::*;
use crate::engine::Engine;

#[test]
fn capabilities_and_volumes_that_allow_the_removal_of_mounts() {
    let volume = |kind: &str, destination: &str, source: &str| {
        let json = json!({
            "annotations": { "io.kubernetes.cri.sandbox-uid": "uid", "io.kubernetes.cri.container-name": "main" },
            "mounts": [{ "destination": "/etc/hosts", "type": "bind", "source": "/h" }, { "destination": destination, "type": kind, "source": source }],
        });
        Spec { json, engine: Engine::Containerd }
    };
    for (kind, destination, source, expected) in [
        ("bind", "/etc/", "/v", Some("a volume over /etc")),
        ("nfs", "/usr/local", "/v", Some("a volume over /usr/local")),
        ("bind", "/usr/lib/../local/vgpu", "/v", Some("a volume over /usr/local/vgpu")),
        ("bind", "/usr/local/vgpu", "/host/vgpu/containers/uid_main", None),
        ("tmpfs", "/etc", "tmpfs", None),
        ("bind", "/etc/ld.so.preload", "/v", None),
        ("bind", "/usr/local/lib", "/v", None),
    ] {
        assert_eq!(limits_evadable_by(&volume(kind, destination, source)).as_deref(), expected, "{kind} {destination}");
    }
    for (capabilities, expected) in [
        (json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]), Some("CAP_SYS_ADMIN")),
        (json!(["cap_sys_admin"]), Some("CAP_SYS_ADMIN")),
        (json!(["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]), Some("CAP_DAC_READ_SEARCH")),
        (json!(["CAP_CHOWN", "CAP_UNKNOWN", 1]), None),
        (json!(["CAP_SYS_PTRACE"]), None),
        (json!(null), None),
    ] {
        let namespaces = json!([{ "type": "pid" }]);
        let spec =
            Spec::from(json!({ "process": { "capabilities": { "bounding": capabilities } }, "linux": { "namespaces": namespaces } }));
        assert_eq!(limits_evadable_by(&spec).as_deref(), expected, "{capabilities}");
    }
    let spec = Spec::from(json!({ "process": { "capabilities": { "bounding": ["CAP_SYS_PTRACE"] } }, "linux": { "namespaces": [] } }));
    assert_eq!(limits_evadable_by(&spec).as_deref(), Some("CAP_SYS_PTRACE in the host's PID namespace"));
}
