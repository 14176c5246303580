use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::test_host::Host;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Returns the record of a container with this bundle below a folder.
fn record(folder: &TempDir, bundle: &str) -> Record {
    let host = Host::new();
    host.container(ID, "c", "p", &[]);
    let bundle = folder.path().join(bundle).join(ID);
    Record { bundle, pod: None, namespace: None, container: None, ..host.record(ID) }
}

fn write(path: &Path, text: &serde_json::Value) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // The engines replace their files.
    let _ = fs::remove_file(path);
    fs::write(path, text.to_string()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn name(names: &mut EngineNames, record: &Record) -> Option<(String, Engine)> {
    names.get(Path::new("/run/vgpu/containers/c"), record).map(|found| (found.name, found.engine))
}

#[test]
fn dockers_names_are_read_where_docker_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    let record = record(&dir, "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby");
    let data = dir.path().join("data/100000.100000/containers");
    // The network of another container, whose files are mounted.
    let mounts = json!([
        { "destination": "/data", "type": "bind", "source": "/srv/hostname" },
        { "destination": "/etc/hostname", "type": "bind", "source": data.join("other/hostname") },
    ]);
    write(&record.bundle.join("config.json"), &json!({ "mounts": mounts, "annotations": { "nerdctl/name": "forged" } }));
    let (mut names, file) = (EngineNames::default(), data.join(ID).join("config.v2.json"));
    assert_eq!(name(&mut names, &record), None, "no file");
    write(&file, &json!({ "ID": ID, "Name": "/web", "State": {} }));
    assert_eq!(name(&mut names, &record), Some(("web".to_owned(), Engine::Docker)));
    write(&file, &json!({ "ID": ID, "Name": "/renamed", "State": {} }));
    assert_eq!(name(&mut names, &record), Some(("renamed".to_owned(), Engine::Docker)));
    write(&file, &json!({ "ID": "another", "Name": "/web" }));
    assert_eq!(name(&mut names, &record), None, "another container's file");
}

/// A pipe without a writer would be waited for.
#[test]
fn a_pipe_in_place_of_an_engines_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let docker = record(&dir, "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby");
    let file = dir.path().join("data/containers").join(ID).join("config.v2.json");
    let mounts = json!([{ "destination": "/etc/hostname", "type": "bind", "source": file.with_file_name("hostname") }]);
    write(&docker.bundle.join("config.json"), &json!({ "mounts": mounts }));
    let mut names = EngineNames::default();
    write(&file, &json!({ "ID": ID, "Name": "/web", "State": {} }));
    assert_eq!(name(&mut names, &docker), Some(("web".to_owned(), Engine::Docker)));
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_eq!(name(&mut names, &docker), None);
}

#[test]
fn podmans_names_are_read_from_its_storage() {
    let dir = tempfile::tempdir().unwrap();
    let record = record(&dir, "storage/overlay-containers");
    let record = Record { bundle: record.bundle.join("userdata"), ..record };
    let storage = dir.path().join("storage/overlay-containers");
    let mut names = EngineNames::default();
    write(&storage.join("containers.json"), &json!([{ "id": "x", "names": ["other"] }, { "id": "y" }]));
    assert_eq!(name(&mut names, &record), None);
    write(&storage.join("volatile-containers.json"), &json!([{ "id": ID, "names": ["web"] }]));
    assert_eq!(name(&mut names, &record), Some(("web".to_owned(), Engine::Podman)));
}

#[test]
fn nerdctls_names_are_read_from_its_bundles_only() {
    let dir = tempfile::tempdir().unwrap();
    let annotated = json!({ "annotations": { "nerdctl/name": "web" } });
    for (bundle, expected) in [
        ("run/containerd/io.containerd.runtime.v2.task/default", Some(("web".to_owned(), Engine::Nerdctl))),
        ("run/containerd/io.containerd.runtime.v2.task/k8s.io", None),
        ("run/containerd/io.containerd.runtime.v2.task/moby", None),
        ("srv/bundles/default", None),
    ] {
        let record = record(&dir, bundle);
        write(&record.bundle.join("config.json"), &annotated);
        assert_eq!(name(&mut EngineNames::default(), &record), expected, "{bundle}");
        let of_pod = Record { pod: Some("p".to_owned()), ..record };
        assert_eq!(name(&mut EngineNames::default(), &of_pod), None);
    }
}

#[test]
fn files_that_others_can_write_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let record = record(&dir, "storage/overlay-containers");
    let record = Record { bundle: record.bundle.join("userdata"), ..record };
    let file = dir.path().join("storage/overlay-containers/containers.json");
    write(&file, &json!([{ "id": ID, "names": ["forged"] }]));
    for mode in [0o620, 0o602] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(name(&mut EngineNames::default(), &record), None, "{mode:o}");
    }
}
