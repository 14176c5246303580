//! What the OCI runtime and its hooks read.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vgpu_config::dialect::claims::Share;
use vgpu_config::{Inventory, Policy, devices};
use vgpu_oci_hook::engine::Engine;
use vgpu_oci_hook::spec::Spec;
use vgpu_oci_hook::state::{Record, check_id};
use vgpu_oci_hook::{apply, argv, edits, path, plan, preload_list, privilege};
use vgpu_region::paths;

/// Id of the containers.
const ID: &str = "0a1b";

/// Decides on the container of a specification and edits it. Asserts that the edits change nothing else, and nothing when repeated.
pub fn bundle(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    for engine in [Engine::Containerd, Engine::Crio, Engine::Other] {
        edit(&Spec { json: value.clone(), engine });
    }
}

/// Decides on the container of a specification and edits it.
fn edit(spec: &Spec) {
    let policy = Policy::default();
    let state = Path::new("/run/vgpu");
    let _ = privilege::limits_evadable_by(spec);
    let Ok(request) = plan::request(spec, state, |_| Some(String::new())) else { return };
    let is_gpu_container = plan::is_gpu_container(spec, &request, &policy, state);
    assert!(!(plan::is_sandbox(spec, ID, &policy, state) && request.visible.has_gpus()), "a sandbox with a GPU is not limited");
    assert!(is_gpu_container || !request.visible.has_gpus(), "a container with a GPU is not limited");
    let Ok(Some(limits)) = plan::decide(spec, &request, &policy, None) else { return };
    let destinations = vec![paths::LIBRARY, paths::LD_SO_PRELOAD, paths::LIMITS, paths::REGION];
    let Ok(edits) = edits::edits(&limits, destinations, Path::new("/usr/bin/vgpu-hook"), state) else { return };
    let Ok(edited) = apply::to_spec(spec.clone(), &edits) else { return };
    assert_eq!(without_edits(&spec.json), without_edits(&edited.json), "other parts were changed");
    let again = apply::to_spec(edited.clone(), &edits).expect("edits of an edited specification");
    assert_eq!(again, edited, "a second edit changes something");
}

/// Returns a specification without the parts that vgpu edits.
fn without_edits(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(object) = spec.as_object_mut() {
        object.remove("mounts");
        object.remove("hooks");
        if let Some(process) = object.get_mut("process").and_then(Value::as_object_mut) {
            process.remove("env");
        }
        if object.get("process").is_some_and(|process| process.is_null() || process.as_object().is_some_and(serde_json::Map::is_empty)) {
            object.remove("process");
        }
    }
    spec
}

/// Reads a runtime's arguments, separated by zeros, and an image's list of libraries.
pub fn arguments(data: &[u8]) {
    let words: Vec<OsString> = data.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    let _ = argv::command(&words);
    if let Some(creation) = argv::creation(&words) {
        assert!(words.iter().any(|word| ["create", "run", "restore"].iter().any(|known| word == known)), "{creation:?}");
    }
    let normal = path::normalize(&PathBuf::from(OsString::from_vec(data.to_vec())));
    assert!(normal.is_absolute() && normal == path::normalize(&normal), "{}", normal.display());
    let Ok(text) = std::str::from_utf8(data) else { return };
    if check_id(text).is_ok() {
        assert_eq!(Path::new("/run/vgpu").join(text).parent(), Some(Path::new("/run/vgpu")), "an id that leaves its folder");
    }
    let list = preload_list::merged(text);
    assert_eq!(list.lines().next(), Some(paths::LIBRARY));
    assert_eq!(preload_list::merged(&list), list, "a second merge changes something");
    let entries: Vec<&str> = list.split('\n').collect();
    assert_eq!(entries.iter().collect::<BTreeSet<_>>().len(), entries.len(), "an entry occurs twice");
}

/// Reads the files that the host side keeps, and the operator's policy.
pub fn host_files(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(policy) = Policy::parse(text) {
        let request = vgpu_config::Request::default();
        let container = vgpu_config::decide::Container::default();
        if let Ok(Some(limits)) = vgpu_config::decide(&request, &policy, None, container) {
            assert!(limits.page().is_some(), "limits that do not fit into their page");
        }
    }
    if let Ok(inventory) = serde_json::from_str::<Inventory>(text) {
        let _ = inventory.gpus.iter().filter_map(|gpu| devices::uuid(&gpu.uuid)).count();
    }
    if let Ok(record) = serde_json::from_str::<Record>(text) {
        let _ = record.limits.page();
        let _ = record.injected_files(Path::new("/run/vgpu/containers/a"));
    }
    let _ = serde_json::from_str::<Share>(text);
}
