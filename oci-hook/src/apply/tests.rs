use serde_json::json;

use super::*;
use crate::edits::edits;
use vgpu_config::Limits;
use vgpu_config::limits::{GpuLimits, Which};
use vgpu_config::quantity::Bytes;

fn example() -> Edits {
    let limits = Limits {
        gpus: vec![GpuLimits { memory: Bytes::new(1), ..GpuLimits::none(Which::All) }],
        devices: Some(vec!["1".into()]),
        ..Limits::default()
    };
    let destinations = vec!["/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload"];
    edits(&limits, destinations, Path::new("/h"), Path::new("/s")).unwrap()
}

#[test]
fn unknown_fields_and_their_order_are_kept() {
    let text = r#"{"z":1,"annotations":{"b":"1","a":"2"},"mounts":[{"source":"s","destination":"/x","new":[1]}],"process":{"env":["A=1"],"zz":{}},"linux":{"future":true}}"#;
    let edited = to_spec(Spec::from(serde_json::from_str::<serde_json::Value>(text).unwrap()), &example()).unwrap().json.to_string();
    for part in [
        r#"{"z":1,"annotations":{"b":"1","a":"2"},"mounts":[{"source":"s","destination":"/x","new":[1]}],"#,
        r#""zz":{}}"#,
        r#""linux":{"future":true}"#,
    ] {
        assert!(edited.contains(part), "{part} in {edited}");
    }
}

#[test]
fn edits_are_idempotent() {
    let spec = Spec::from(json!({ "hooks": { "createContainer": [{ "path": "/other", "args": ["other"] }] }, "mounts": null }));
    let once = to_spec(spec, &example()).unwrap();
    assert_eq!(to_spec(once.clone(), &example()).unwrap(), once);
    assert_eq!(once.json["hooks"]["createContainer"].as_array().map(Vec::len), Some(2));
}

#[test]
fn other_mounts_on_the_destinations_are_removed() {
    let mount = |destination: &str| json!({ "destination": destination, "source": "/theirs", "options": ["ro"] });
    let spec = Spec::from(json!({ "mounts": [
        mount("/usr/local/vgpu/libvgpu.so"), mount("/etc//ld.so.preload"), mount("/etc"), mount("/x/../usr/local/./vgpu/libvgpu.so/"),
    ] }));
    let edited = to_spec(spec, &example()).unwrap();
    assert_eq!(edited.json["mounts"], json!([mount("/etc")]));
}

#[test]
fn variables_are_replaced() {
    let spec = Spec::from(
        json!({ "process": { "env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES_X=1", "NVIDIA_VISIBLE_DEVICES=0"] } }),
    );
    let edited = to_spec(spec, &example()).unwrap();
    assert_eq!(edited.json["process"]["env"], json!(["NVIDIA_VISIBLE_DEVICES_X=1", "NVIDIA_VISIBLE_DEVICES=1"]));
}

#[test]
fn other_types_than_lists_are_refused() {
    let message = to_spec(Spec::from(json!({ "mounts": {} })), &example()).unwrap_err().to_string();
    assert_eq!(message, r#"config.json: "mounts": expected a list"#);
    assert!(to_spec(Spec::from(json!([])), &example()).is_err());
}

#[test]
fn a_replaced_file_keeps_owner_and_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let old = File::open(&path).unwrap();
    replace_file(&path, b"new").unwrap();
    let new = fs::metadata(&path).unwrap();
    let old = old.metadata().unwrap();
    assert_eq!((new.mode(), new.uid(), new.gid()), (old.mode(), old.uid(), old.gid()));
    assert_ne!(new.ino(), old.ino());
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file remains");
    assert!(replace_file(&dir.path().join("absent"), b"").unwrap_err().to_string().contains("absent"));
}

#[test]
fn temporary_files_of_killed_processes_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // PIDs have at most 22 bits; that of init is alive.
    let (left, kept) =
        (["config.json.vgpu-99999999"], ["config.json.vgpu-1", "config.json.vgpu-x", "config.json.bak", "other.vgpu-99999999"]);
    for name in left.iter().chain(&kept).chain(&["config.json"]) {
        fs::write(path(name), "old").unwrap();
    }
    replace_file(&path("config.json"), b"new").unwrap();
    assert!(!left.iter().any(|name| path(name).exists()));
    assert!(kept.iter().all(|name| path(name).exists()));
    // One of an earlier process with the same PID is in the way.
    fs::write(path(&format!("config.json.vgpu-{}", std::process::id())), "old").unwrap();
    replace_file(&path("config.json"), b"newer").unwrap();
    assert_eq!(fs::read_to_string(path("config.json")).unwrap(), "newer");
}
