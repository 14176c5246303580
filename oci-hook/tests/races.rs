//! Another process changes the image while a container is created, such as a container that shares a volume.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use common::{host, runtimes};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use vgpu_test_harness::{Bundle, Host};

/// A process with its own mount namespace, like a container's init process.
struct Init(std::process::Child);

impl Init {
    fn new() -> Self {
        let mut child =
            Command::new("unshare").args(["-m", "sh", "-c", "echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls the hook as a runtime does at `createRuntime`. Returns whether it succeeded.
fn create_runtime(host: &Host, bundle: &Bundle, id: &str, init: &Init) -> bool {
    let mut hook = Command::new(host.hook());
    hook.arg("create-runtime").arg("--config").arg(host.policy_file());
    let mut hook = hook.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let state = serde_json::json!({ "ociVersion": "1.0.2", "id": id, "status": "creating", "pid": init.0.id(), "bundle": bundle.path() });
    serde_json::to_writer(hook.stdin.take().unwrap(), &state).unwrap();
    hook.wait().unwrap().success()
}

/// Exchanges two paths repeatedly while `work` runs, with pauses in which `work` can succeed.
fn flipping<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    /// Stops the exchange, even if an assertion fails.
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
                // Pauses of 5 to 80 ms in turn: on a busy machine `work` needs longer ones.
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
fn mount_points_are_never_created_outside() {
    let Some(runtime) = runtimes().next() else { return };
    let host = host(runtime);
    let outside = tempfile::tempdir().unwrap();
    for path in ["etc", "usr", "usr/local"] {
        let mut bundle = Bundle::new().annotation("nvidia.com/gpumem", "1024");
        bundle.spec["mounts"] = serde_json::json!([]);
        bundle.write();
        let init = Init::new();
        let flip = bundle.path().join("flip");
        std::os::unix::fs::symlink(outside.path(), &flip).unwrap();
        let (mut created, mut refused) = (0, 0);
        flipping(&bundle.rootfs().join(path), &flip, || {
            for round in 0..700 {
                let id = format!("{}-{round}", path.replace('/', "-"));
                if create_runtime(&host, &bundle, &id, &init) {
                    created += 1
                } else {
                    refused += 1
                }
                host.clear_state();
            }
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "/{path}: something was created outside");
        assert!(created > 0 && refused > 0, "/{path}: {created} created, {refused} refused: no race happened");
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
        // The exchange continues while the container runs, which only the host's root can do to an image. So the test does not check what
        // the container sees, only that each mount is where it was checked, or the container did not start.
        flipping(&bundle.rootfs().join("etc"), &flip, || {
            for _ in 0..60 {
                refused += u32::from(!host.run_bare(&bundle).status.success());
            }
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{runtime:?}: something was created outside");
        flipping(&wrapped.rootfs().join("etc"), &other_flip, || {
            for _ in 0..60 {
                refused_wrapped += u32::from(!host.run(&wrapped).status.success());
            }
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(outside.path().to_str().unwrap()), "{runtime:?}: something was mounted outside");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{runtime:?}: something was created outside");
        assert!(refused > 0 && refused_wrapped > 0, "{runtime:?}: no race happened");
    }
}
