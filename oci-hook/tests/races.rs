//! Somebody else who changes the image while a container is made: another container that shares a volume, say.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use common::{host, runtimes};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use vgpu_test_harness::{Bundle, Host};

/// A process with a mount namespace of its own, as a container's first is.
struct First(std::process::Child);

impl First {
    fn new() -> Self {
        let mut child =
            Command::new("unshare").args(["-m", "sh", "-c", "echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls the hook as a runtime would at `createRuntime`.
fn create_runtime(host: &Host, bundle: &Bundle, id: &str, first: &First) -> bool {
    let mut hook = Command::new(host.hook());
    hook.arg("create-runtime").arg("--config").arg(host.policy_file());
    let mut hook = hook.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let state = serde_json::json!({ "ociVersion": "1.0.2", "id": id, "status": "creating", "pid": first.0.id(), "bundle": bundle.path() });
    serde_json::to_writer(hook.stdin.take().unwrap(), &state).unwrap();
    hook.wait().unwrap().success()
}

/// Exchanges two paths again and again while `work` runs, with rests in which it comes through.
fn flipping<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    /// Stops the exchange, also if an assertion fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1_u32.. {
                if done.load(Relaxed) {
                    break;
                }
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                // Longer and longer ones, and short ones again: on a busy machine it takes longer to come through.
                if round.is_multiple_of(201) {
                    std::thread::sleep(std::time::Duration::from_millis(5_u64 << (round / 201 % 5)));
                }
            }
        });
        let _stop = Stop(&done);
        work()
    })
}

#[test]
fn mount_points_are_never_made_outside() {
    let Some(runtime) = runtimes().next() else { return };
    let host = host(runtime);
    let outside = tempfile::tempdir().unwrap();
    for path in ["etc", "usr", "usr/local"] {
        let mut bundle = Bundle::new().annotation("nvidia.com/gpumem", "1024");
        bundle.spec["mounts"] = serde_json::json!([]);
        bundle.write();
        let first = First::new();
        let flip = bundle.path().join("flip");
        std::os::unix::fs::symlink(outside.path(), &flip).unwrap();
        let (mut made, mut refused) = (0, 0);
        flipping(&bundle.rootfs().join(path), &flip, || {
            for round in 0..700 {
                let id = format!("{}-{round}", path.replace('/', "-"));
                if create_runtime(&host, &bundle, &id, &first) {
                    made += 1
                } else {
                    refused += 1
                }
                let _ = fs::remove_dir_all(host.state_dir());
            }
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "/{path}: something was made outside");
        assert!(made > 0 && refused > 0, "/{path}: {made} made, {refused} refused, so nothing was raced");
    }
}

#[test]
fn nothing_is_mounted_outside() {
    for runtime in runtimes() {
        let host = host(runtime);
        let outside = tempfile::tempdir().unwrap();
        let limited = || Bundle::new().annotation("nvidia.com/gpumem", "1024").shell("echo started");
        let (bundle, wrapped) = (host.with_hooks(limited()), limited());
        let link = |bundle: &Bundle| {
            let flip = bundle.path().join("flip");
            std::os::unix::fs::symlink(outside.path(), &flip).unwrap();
            flip
        };
        let (flip, other_flip) = (link(&bundle), link(&wrapped));
        let (mut refused, mut refused_wrapped) = (0, 0);
        // The exchange goes on while the container runs, which nobody but the host's root can do to an image; so what the container
        // finds is not asked here, only that a mount went where it was checked or the container did not start.
        flipping(&bundle.rootfs().join("etc"), &flip, || {
            for _ in 0..60 {
                refused += u32::from(!host.run_bare(&bundle).status.success());
            }
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{runtime:?}: something was made outside");
        flipping(&wrapped.rootfs().join("etc"), &other_flip, || {
            for _ in 0..60 {
                refused_wrapped += u32::from(!host.run(&wrapped).status.success());
            }
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(outside.path().to_str().unwrap()), "{runtime:?}: something was mounted outside");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{runtime:?}: something was made outside");
        assert!(refused > 0 && refused_wrapped > 0, "{runtime:?}: nothing was raced");
    }
}
