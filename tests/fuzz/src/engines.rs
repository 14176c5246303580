//! The container engines' configuration, which vgpu edits and restores.

use std::path::Path;

use toml_edit::DocumentMut;
use vgpu_cli::configure::{crio::CRIO, docker, podman::PODMAN};
use vgpu_containerd::{Handler, Source, Version, attach, detach, inspect, render};

/// Registers vgpu in containerd's main file and removes it again. Asserts that the comments stay.
pub fn containerd(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let drop_in = Path::new("/etc/containerd/conf.d/99-vgpu.toml");
    let main = Source::new("/etc/containerd/config.toml", text);
    let Ok(edited) = attach(&main, drop_in, Version::V3) else { return };
    let attached = Source::new("/etc/containerd/config.toml", edited.text.clone());
    assert_eq!(attach(&attached, drop_in, Version::V3).ok().as_ref(), Some(&edited), "a second run changes something");
    let handler = Handler { name: "vgpu", binary: "/usr/bin/vgpu-runtime", default: true };
    if let Ok(ours) = render(edited.version, std::slice::from_ref(&attached), handler) {
        let loaded = [attached.clone(), Source::new(drop_in, ours.clone())];
        let _ = inspect(&loaded, drop_in, Some(&ours), "vgpu");
    }
    let detached = detach(&attached, drop_in).expect("a file that vgpu has written");
    let back = detached.unwrap_or(edited.text);
    // The editor drops a byte order mark.
    let squeeze = |text: &str| text.trim_start_matches('\u{feff}').split_whitespace().collect::<String>();
    // An entry of vgpu's that was there before is removed, too.
    if !text.contains("vgpu") {
        assert_eq!(squeeze(&back), squeeze(text), "undo does not restore the file");
    }
}

/// Registers vgpu in Docker's daemon.json and removes it again.
pub fn docker(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("daemon.json");
    let Ok(registered) = docker::register(path, Some(text), "/usr/bin/vgpu-runtime", true) else { return };
    let again = docker::register(path, Some(&registered), "/usr/bin/vgpu-runtime", true).expect("a file that vgpu has written");
    assert_eq!(again, registered, "a second run changes something");
    let cleaned = docker::unregister(path, &registered, Some(text)).expect("a file that vgpu has written");
    // An entry of vgpu's that was there before is removed, too.
    if !text.contains("vgpu") {
        assert!(docker::is_same(&cleaned, text), "undo does not restore the file: {cleaned}");
    }
}

/// Renders the drop-ins for CRI-O and Podman over one or two layers of the operator's configuration, which `---` separates.
pub fn drop_ins(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let layers: Result<Vec<DocumentMut>, _> = text.splitn(2, "\n---\n").map(str::parse).collect();
    let Ok(layers) = layers else { return };
    for engine in [CRIO, PODMAN] {
        for (default, hooks) in [(false, None), (true, None), (false, Some(Path::new("/etc/hooks.d")))] {
            let drop_in = engine.render(&layers, "/usr/bin/vgpu-runtime", default, hooks);
            assert!(drop_in.parse::<DocumentMut>().is_ok(), "{drop_in}");
            assert!(engine.is_ours(&drop_in) && engine.is_default(&drop_in) == default, "{drop_in}");
        }
    }
}
