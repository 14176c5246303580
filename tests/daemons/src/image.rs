//! Busybox image, in the two formats that the daemons import.

use crate::command::run;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes a root file system as a tar file, for `docker import` and `podman import`. Returns its path.
pub fn import_tar(folder: &Path) -> PathBuf {
    let rootfs = folder.join("rootfs");
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp", "run"] {
        fs::create_dir_all(rootfs.join(dir)).expect("the folder is writable");
    }
    fs::copy("/bin/busybox", rootfs.join("bin/busybox")).expect("busybox-static is installed");
    for applet in ["sh", "cat", "echo", "sleep", "true", "ls", "rm", "env"] {
        let _ = symlink("busybox", rootfs.join("bin").join(applet));
    }
    fs::write(rootfs.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").expect("the folder is writable");
    let tar = folder.join("rootfs.tar");
    run(Command::new("tar").arg("-C").arg(&rootfs).args(["--owner=0", "--group=0", "-cf"]).arg(&tar).arg("."));
    tar
}

/// Writes an OCI archive named `reference` that runs `command`, for `ctr images import`. Returns its path.
pub fn oci_archive(folder: &Path, reference: &str, command: &[&str]) -> PathBuf {
    let layout = folder.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("the folder is writable");
    let blob = |bytes: &[u8], media_type: &str| -> Value {
        let file = blobs.join("new");
        fs::write(&file, bytes).expect("the folder is writable");
        let sum = run(Command::new("sha256sum").arg(&file));
        let sum = sum.split(' ').next().expect("sha256sum prints the sum first");
        fs::rename(&file, blobs.join(sum)).expect("the file can be renamed");
        json!({ "mediaType": format!("application/vnd.oci.image.{media_type}"), "digest": format!("sha256:{sum}"), "size": bytes.len() })
    };
    let layer = blob(&fs::read(import_tar(folder)).expect("the tar file was just written"), "layer.v1.tar");
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": command },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = blob(config.to_string().as_bytes(), "config.v1+json");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(manifest.to_string().as_bytes(), "manifest.v1+json");
    manifest["annotations"] = json!({ "io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference });
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(layout.join("index.json"), index.to_string()).expect("the folder is writable");
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("the folder is writable");
    let archive = folder.join("image.tar");
    run(Command::new("tar").arg("-C").arg(&layout).arg("-cf").arg(&archive).args(["oci-layout", "index.json", "blobs"]));
    archive
}
