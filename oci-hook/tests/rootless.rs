//! Rootless containers of an unprivileged user, created by runc.

mod common;

use std::process::Command;

use common::{host, runtimes};
use serde_json::json;
use vgpu_test_harness::{Bundle, Runtime};

/// UID of a user that exists on every system.
const USER: &str = "1";

#[test]
fn rootless_containers_are_limited() {
    if !runtimes().any(|runtime| runtime == Runtime::Runc) {
        return;
    }
    let host = host(Runtime::Runc);
    let state = tempfile::tempdir().unwrap();
    host.policy("");
    let policy = std::fs::read_to_string(host.policy_file()).unwrap();
    let own = format!("state_dir = {:?}", state.path().join("vgpu"));
    std::fs::write(host.policy_file(), policy.replace(&format!("state_dir = {:?}", host.state_dir()), &own)).unwrap();

    let script = "cat /etc/ld.so.preload; echo x 2>&- >/usr/local/vgpu/limits && echo wrote; mv /etc /x 2>&- && echo moved; \
                  printf x 1<>/usr/local/vgpu/region && echo region";
    let mut bundle = Bundle::new().annotation("nvidia.com/gpumem", "1024").shell(script);
    let namespaces = bundle.spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "network");
    namespaces.push(json!({ "type": "user" }));
    let map = json!([{ "containerID": 0, "hostID": 1, "size": 1 }]);
    bundle.spec["linux"]["uidMappings"] = map.clone();
    bundle.spec["linux"]["gidMappings"] = map;
    bundle.spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["type"] != "devpts");
    bundle.write();
    for path in [bundle.path(), state.path()] {
        let changed = Command::new("chown").args(["-hR", &format!("{USER}:{USER}")]).arg(path).status().unwrap();
        assert!(changed.success());
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_vgpu-runtime"));
    // The user cannot access root's build directory.
    for name in ["vgpu-runtime", "vgpu-hook"] {
        std::fs::copy(program.with_file_name(name), state.path().join(name)).unwrap();
    }
    let mut run = Command::new("setpriv");
    run.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(state.path().join("vgpu-runtime"));
    run.env("VGPU_CONFIG", host.policy_file()).env("XDG_RUNTIME_DIR", state.path());
    run.arg("--root").arg(state.path().join("root")).args(["run", "--bundle"]).arg(bundle.path()).arg("rootless");
    let outcome = host.outcome(&mut run);
    assert_eq!(outcome.ok(), "/usr/local/vgpu/libvgpu.so\nregion\n");
}
