//! A tenant names files for the monitor to write, by `CUDA_DEVICE_MEMORY_SHARED_CACHE` and `PFLOG`: those that it could not write itself stay
//! byte for byte as they are, and its own are written.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use common::{Monitor, wait_for};
use tempfile::TempDir;
use vgpu_e2e::{Kit, Machine, Running, Way};
use vgpu_test_harness::{Bundle, Host, Runtime, can_run};

/// User of the host that is root in a user namespace.
const OUTER: u32 = 100_000;
/// Size of HAMi's region in bytes.
const REGION_SIZE: u64 = 2_008_952;

/// Calls `test` with each installed runtime.
fn with_runtimes(test: impl Fn(&Machine, &Host)) {
    for runtime in [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)) {
        let kit = Kit::find();
        test(&Machine::simulated(&kit, &[]), &vgpu_e2e::host(&kit, runtime));
    }
}

/// Starts a container that names these paths.
fn start(host: &Host, bundle: Bundle, cache: &str, logs: &str) -> Running {
    let bundle = bundle.annotation("nvidia.com/gpumem", "1024").env("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache).env("PFLOG", logs);
    Way::Wrapper.start(host, bundle.args(&["/bin/sleep", "600"]))
}

/// Content, owner, mode and time of change of a file.
fn state(path: &Path) -> (Vec<u8>, u32, u32, i64, i64) {
    let found = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), found.uid(), found.mode(), found.mtime(), found.mtime_nsec())
}

/// Volume with files of root that look like vgpu's own, but for the owner.
struct Volume {
    folder: TempDir,
    victims: Vec<PathBuf>,
}

impl Volume {
    /// Creates the files with this mode. All users may write the folders.
    fn new(mode: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let logs = folder.path().join("logs");
        fs::create_dir(&logs).unwrap();
        for dir in [folder.path(), &logs] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let victims = ["cache", "logs/metrics.log", "logs/timeline.log", "logs/trace.json"].map(|name| folder.path().join(name)).to_vec();
        let heads: [&[u8]; 4] = [
            &19_920_718_u32.to_ne_bytes(),
            b"name:mem_used,count:1\n",
            b"name:cuInit\n",
            b"[\n{\"ph\":\"M\",\"name\":\"process_labels\",\n",
        ];
        for (path, head) in victims.iter().zip(heads) {
            fs::write(path, head).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        File::options().write(true).open(&victims[0]).unwrap().set_len(REGION_SIZE).unwrap();
        Self { folder, victims }
    }

    fn states(&self) -> Vec<(Vec<u8>, u32, u32, i64, i64)> {
        self.victims.iter().map(|path| state(path)).collect()
    }
}

/// Waits until the monitor has given up both the region and the logs of a container.
fn refused(monitor: &Monitor, id: &str) {
    let mut lines = Vec::new();
    wait_for(&format!("both are refused for {id}"), || {
        lines.extend(monitor.lines.try_iter());
        let has = |text: &str| lines.iter().any(|line| line.contains(text) && line.contains(id));
        (has("cannot keep HAMi's shared region") && has("cannot write trace logs")).then_some(())
    });
    println!("{lines:#?}");
}

#[test]
fn files_of_root_in_a_volume_stay() {
    with_runtimes(|machine, host| {
        let monitor = Monitor::start(host, machine);
        // Others may write the second kind, but they are not the tenant's.
        for mode in [0o600, 0o666] {
            let volume = Volume::new(mode);
            let before = volume.states();
            let plain = || machine.bundle().bind(volume.folder.path(), "/volume", &[]);
            for bundle in [plain().user(1000), plain().user_namespace(OUTER)] {
                let running = start(host, bundle, "/volume/cache", "/volume/logs");
                refused(&monitor, &running.id);
                assert!(volume.states() == before);
            }
        }
    });
}

/// Root in the container without a user namespace is root: its mounts are what protects the host's files.
#[test]
fn a_volume_that_is_read_only_stays() {
    with_runtimes(|machine, host| {
        let monitor = Monitor::start(host, machine);
        let volume = Volume::new(0o644);
        let before = volume.states();
        let running = start(host, machine.bundle().bind(volume.folder.path(), "/volume", &["ro"]), "/volume/cache", "/volume/logs");
        refused(&monitor, &running.id);
        let missing = start(host, machine.bundle().bind(volume.folder.path(), "/volume", &["ro"]), "/volume/new", "/volume/new/logs");
        refused(&monitor, &missing.id);
        assert!(volume.states() == before && !volume.folder.path().join("new").exists());
    });
}

/// Files of root that root in the container could write, but that are neither a region nor logs.
#[test]
fn files_of_others_stay_even_if_the_tenant_is_root() {
    with_runtimes(|machine, host| {
        let monitor = Monitor::start(host, machine);
        let volume = Volume::new(0o600);
        for path in &volume.victims {
            // Like a disk image: zeros at the start, and larger than a region.
            fs::write(path, vec![0; 3 << 20]).unwrap();
        }
        let before = volume.states();
        let running = start(host, machine.bundle().bind(volume.folder.path(), "/volume", &[]), "/volume/cache", "/volume/logs");
        refused(&monitor, &running.id);
        assert!(volume.states() == before);
    });
}

#[test]
fn settings_of_the_host_stay() {
    with_runtimes(|machine, host| {
        let monitor = Monitor::start(host, machine);
        let settings = ["/proc/sys/kernel/domainname", "/proc/sys/kernel/core_pattern"].map(Path::new);
        let read = || settings.map(|path| fs::read(path).unwrap());
        let before = read();
        for path in settings.map(|path| path.to_str().unwrap()) {
            for bundle in [machine.bundle(), machine.bundle().user_namespace(OUTER), machine.bundle().user(1000)] {
                let running = start(host, bundle, path, "/proc/self/logs");
                refused(&monitor, &running.id);
                let running = start(host, machine.bundle(), "/dev/null", path);
                refused(&monitor, &running.id);
                assert!(read() == before, "{path}");
            }
        }
    });
}

/// What the tenant may write is written, and belongs to the tenant.
#[test]
fn files_of_the_tenant_are_written() {
    with_runtimes(|machine, host| {
        let _monitor = Monitor::start(host, machine);
        for owner in [0, 1000, OUTER] {
            let volume = TempDir::new().unwrap();
            chown(volume.path(), Some(owner), Some(owner)).unwrap();
            fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o700)).unwrap();
            // One that exists is taken over if it is empty.
            fs::write(volume.path().join("cache"), "").unwrap();
            chown(volume.path().join("cache"), Some(owner), Some(owner)).unwrap();
            let bundle = machine.bundle();
            let bundle = match owner {
                0 => bundle,
                OUTER => bundle.user_namespace(OUTER),
                uid => bundle.user(uid),
            };
            let bundle = bundle.bind(volume.path(), "/volume", &[]);
            let _running = start(host, bundle, "/volume/cache", "/volume/some/logs");
            for name in ["cache", "some/logs/metrics.log", "some/logs/timeline.log", "some/logs/trace.json"] {
                let path = volume.path().join(name);
                let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
                // Without events the timeline stays empty.
                wait_for(name, || (path.exists() && (name.contains("timeline") || size(&path) > 0)).then_some(()));
                assert_eq!(fs::metadata(&path).unwrap().uid(), owner, "{name}");
            }
            wait_for("a whole region", || (fs::metadata(volume.path().join("cache")).unwrap().len() == REGION_SIZE).then_some(()));
        }
    });
}
