//! Users other than root are told what they do not see: `vgpu show` with the default folders, `/run/vgpu` and `/run/user/UID/vgpu`.

use std::process::Command;

/// A user without a home and without containers.
const UID: u32 = 65534;

/// Prepares `/run` in a mount namespace of its own, and runs `vgpu show` there as that user.
const SCRIPT: &str = r#"
    mount -t tmpfs -o mode=755 tmpfs /run
    touch /run/policy.toml /run/vgpu.program
    mount --bind "$VGPU" /run/vgpu.program
    eval "$PREPARE"
    exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups /run/vgpu.program show --config /run/policy.toml
"#;

/// Returns the exit status and what `vgpu show` says, both on stdout and stderr. `None`, with the reason, where that is impossible.
fn show(prepare: &str) -> Option<(i32, String)> {
    let root = Command::new("unshare").args(["--mount", "--propagation", "private", "setpriv", "--clear-groups", "true"]).output();
    if !root.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: expected root, with unshare and setpriv, for a /run of its own");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-euc", SCRIPT]).env_remove("VGPU_CONFIG");
    let output =
        command.envs([("VGPU", env!("CARGO_BIN_EXE_vgpu")), ("PREPARE", prepare), ("USER_ID", &UID.to_string())]).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.code().unwrap(), text))
}

#[test]
fn users_are_told_of_containers_that_they_do_not_see() {
    let machine = "mkdir -p /run/vgpu/containers/one && chmod 711 /run/vgpu /run/vgpu/containers";
    let Some((status, text)) = show(machine) else { return };
    let expected = format!("user {UID} has no containers in /tmp/vgpu-{UID}: expected root, who can list those in /run/vgpu");
    assert!(status == 1 && text.contains(&expected), "{status} {text}");

    let own = format!("mkdir -p /run/user/{UID}/vgpu/containers/mine && chown -R {UID} /run/user/{UID}");
    let (status, text) = show(&format!("{machine} && {own}")).unwrap();
    let note = format!("vgpu: note: only the containers of user {UID} are listed; root can list those in /run/vgpu");
    assert!(status == 0 && text.contains(&note), "{status} {text}");

    let (status, text) = show(&format!("{machine} && mkdir -p /run/user/{UID}/vgpu/containers && chown -R {UID} /run/user/{UID}")).unwrap();
    assert!(
        status == 1 && text.contains(&format!("user {UID} has no containers in /run/user/{UID}/vgpu: expected root")),
        "{status} {text}"
    );

    // Nobody has containers here.
    let (status, text) = show(&own).unwrap();
    assert!(status == 0 && !text.contains("root"), "{status} {text}");
    let (status, text) = show("true").unwrap();
    assert!(status == 0 && !text.contains("root"), "{status} {text}");
}
