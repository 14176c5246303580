//! `vgpu run` on simulated GPUs: programs with limits and without a container, of root and of another user.
//!
//! Needs root, and the kit of `scripts/build.sh`. Times are the simulated GPU's own.

mod common;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{Monitor, children, signal, stdout, vgpu, wait_for};
use vgpu_e2e::{Fill, Kit, MIB, Machine, host};
use vgpu_test_harness::{Host, Runtime, can_run};

/// Another user than root.
const USER: u32 = 1000;

/// A user of a machine with simulated GPUs, with a state directory of the user's own.
struct Setting {
    _kit: Kit,
    machine: Machine,
    host: Host,
    uid: u32,
    /// Copies of the programs and of the simulated driver that every user can execute.
    folder: tempfile::TempDir,
}

impl Setting {
    /// Returns a setting; `None` if the machine cannot run these tests.
    fn new(uid: u32) -> Option<Self> {
        if !can_run(Runtime::Runc) {
            return None;
        }
        let kit = Kit::find();
        let (machine, host) = (Machine::simulated(&kit, &[]), host(&kit, Runtime::Runc));
        let state = machine.state().unwrap();
        std::fs::set_permissions(state.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&state, Permissions::from_mode(0o666)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let copied = |from: &Path| assert!(Command::new("cp").arg("-r").arg(from).arg(folder.path()).status().unwrap().success());
        [kit.programs(), kit.simgpu(), kit.library(), env!("CARGO_BIN_EXE_vgpu").into()].iter().for_each(|from| copied(from));
        std::fs::write(folder.path().join("config.toml"), "[ceilings]\nmemory = \"8Gi\"\n").unwrap();
        std::fs::create_dir(folder.path().join("state")).unwrap();
        chown(folder.path().join("state"), Some(uid), Some(uid)).unwrap();
        Some(Self { _kit: kit, machine, host, uid, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the command `vgpu SUBCOMMAND` of this user.
    fn vgpu(&self, subcommand: &str) -> Command {
        let of_host = vgpu(&self.host, &self.machine);
        let mut command = Command::new(self.path("vgpu"));
        command.envs(of_host.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("LD_LIBRARY_PATH", self.path("simgpu")).env("VGPU_CONFIG", self.path("config.toml")).uid(self.uid).gid(self.uid);
        command.current_dir("/").arg(subcommand).arg("--state-dir").arg(self.path("state")).stdin(Stdio::null());
        command
    }

    /// Returns the command `vgpu run OPTIONS -- COMMAND`, with test programs in `PATH`.
    fn run(&self, options: &str, command: &[&str]) -> Command {
        let mut run = self.vgpu("run");
        let path = format!("{}:{}", self.path("programs").display(), std::env::var("PATH").unwrap());
        run.env("PATH", path).arg("--library").arg(self.path("libvgpu.so")).args(options.split_whitespace()).arg("--").args(command);
        run
    }

    /// Runs a command to its end.
    fn output(&self, options: &str, command: &[&str]) -> Output {
        self.run(options, command).output().unwrap()
    }

    /// Starts a program that prints a line when it is ready.
    fn start(&self, options: &str, command: &[&str]) -> Child {
        let mut child = self.run(options, command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{child:?} has ended");
        child
    }

    /// Returns what `vgpu show` lists.
    fn shown(&self) -> Vec<serde_json::Value> {
        let text = stdout(self.vgpu("show").arg("--json"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["containers"].as_array().unwrap().clone()
    }

    /// Returns the entries of the state directory.
    fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("state/containers")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Returns the time for which the simulated GPU ran the work of a process, in ns.
    fn busy(&self, pid: u32) -> Option<u64> {
        let text = self.machine.show();
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("pid={pid} ")))?;
        line.split(' ').find_map(|word| word.strip_prefix("busy_ns=")?.parse().ok())
    }
}

/// Runs a test as root and as another user.
fn as_each_user(test: impl Fn(Setting)) {
    for uid in [0, USER] {
        println!("as user {uid}");
        let Some(setting) = Setting::new(uid) else { return };
        test(setting);
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the directory of a process's cgroup of a program.
fn cgroup_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().filter_map(|line| line.rsplit('/').next()).find(|name| name.starts_with("vgpu-run-")).map(str::to_owned)
}

#[test]
fn memory_is_held_for_all_processes_together() {
    as_each_user(|setting| {
        let output = setting.output("--mem 2Gi", &["fill", "--chunk", "64M"]);
        assert!(output.status.success(), "{output:?}");
        let fill = Fill::of(&String::from_utf8_lossy(&output.stdout));
        assert_eq!((fill.error.as_str(), fill.total), ("CUDA_ERROR_OUT_OF_MEMORY", 2048 * MIB));
        assert!((1024 * MIB..=2048 * MIB).contains(&fill.obtained), "{fill:?}");
        // A second process gets what the first one leaves.
        let first = setting.path("state/first");
        let script = "fill --chunk 64M --max 1024M --hold 600 >FIRST & until test -s FIRST; do sleep 0.1; done; fill --chunk 64M; kill $!";
        let output = setting.output("--mem 4Gi", &["sh", "-c", &script.replace("FIRST", first.to_str().unwrap())]);
        let fills =
            [std::fs::read_to_string(&first).unwrap(), String::from_utf8(output.stdout).unwrap()].map(|text| Fill::of(&text).obtained);
        assert!(fills[0] == 1024 * MIB && (1024 * MIB..=3072 * MIB).contains(&fills[1]), "{fills:?}");
        assert_eq!(setting.left(), Vec::<PathBuf>::new());
    });
}

#[test]
fn time_is_held_and_the_program_is_shown_while_it_runs() {
    as_each_user(|setting| {
        let mut child = setting.start("--mem 1Gi --cores 30 --name job", &["tenant", "--ns", "1000000", "--seconds", "600"]);
        let pid = wait_for("the program runs", || children(child.id()).first().map(|child| child.0));
        assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "tenant\n");
        let shown = setting.shown();
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert_eq!((&shown[0]["container"], &shown[0]["init"]), (&"job".into(), &pid.into()), "{shown:?}");
        assert_eq!((&shown[0]["gpus"][0]["memory_limit"], &shown[0]["gpus"][0]["cores"]), (&(1_u64 << 30).into(), &30.into()), "{shown:?}");
        wait_for("30% of the GPU's time", || {
            let (begun, before) = (std::time::Instant::now(), setting.busy(pid)?);
            std::thread::sleep(Duration::from_secs(2));
            let share = (setting.busy(pid)? - before) as f64 / begun.elapsed().as_nanos() as f64;
            println!("share {share:.3}");
            (0.2..0.4).contains(&share).then_some(())
        });
        signal(child.id(), "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
        assert_eq!((setting.left(), setting.shown()), (vec![], vec![]));
    });
}

/// The monitor counts what the program's processes hold by NVML, and nothing of a program beside it.
#[test]
fn root_s_programs_are_seen_and_changed_like_containers() {
    let Some(setting) = Setting::new(0) else { return };
    let mut beside = setting.machine.program("fill").args(["--max", "512M", "--hold", "600"]).stdout(Stdio::null()).spawn().unwrap();
    let mut child = setting.start("--mem 1Gi", &["fill", "--chunk", "64M", "--max", "256M", "--hold", "600"]);
    let pid = wait_for("the program runs", || children(child.id()).first().map(|child| child.0));
    assert!(cgroup_of(pid).is_some(), "it has a cgroup of its own");
    let held = wait_for("NVML lists it", || setting.shown().first()?["gpus"][0]["held"].as_u64().filter(|held| *held > 0));
    assert!((256 * MIB..1024 * MIB).contains(&held), "{held}");
    let output = stdout(setting.vgpu("set").args(["fill", "--gpumem", "2Gi"]));
    assert!(output.contains("2Gi"), "{output}");
    let policy = format!("state_dir = {:?}\n", setting.path("state"));
    std::fs::write(setting.host.policy_file(), policy).unwrap();
    let monitor = Monitor::start(&setting.host, &setting.machine);
    let charged = wait_for("it is in the metrics", || monitor.value("vgpu_memory_charged_bytes", "fill"));
    assert!(charged >= (256 * MIB) as f64, "{charged}");
    signal(pid, "KILL");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    beside.kill().unwrap();
    beside.wait().unwrap();
    assert_eq!(setting.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_a_killed_run_leaves_is_swept_by_the_next_one() {
    as_each_user(|setting| {
        let mut child = setting.start("--mem 1Gi", &["fill", "--max", "64M", "--hold", "600"]);
        let pid = children(child.id())[0].0;
        let cgroup = cgroup_of(pid);
        assert_eq!(cgroup.is_some(), setting.uid == 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(setting.output("--mem 1Gi", &["true"]).status.success());
        assert_eq!(setting.shown().len(), 1, "the program still runs, and is limited");
        signal(pid, "KILL");
        wait_for("it has ended", || (!Path::new(&format!("/proc/{pid}/exe")).exists()).then_some(()));
        wait_for("it is gone", || setting.shown().is_empty().then_some(()));
        assert_eq!(setting.left().len(), 1);
        assert!(setting.output("--mem 1Gi", &["true"]).status.success());
        assert_eq!(setting.left(), Vec::<PathBuf>::new());
        let found = Command::new("find").args(["/sys/fs/cgroup", "-name", &cgroup.unwrap_or("none".into())]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    });
}

#[test]
fn status_signals_and_environment_pass() {
    as_each_user(|setting| {
        let status = |script: &str| setting.output("--mem 1Gi", &["sh", "-c", script]).status.code();
        assert_eq!((status("exit 7"), status("kill -9 $$")), (Some(7), Some(137)));
        let output = setting.run("--cores 50", &["sh", "-c", "echo $LD_PRELOAD; cat"]).env("LD_PRELOAD", "libc.so.6").output().unwrap();
        let preload = format!("{}:libc.so.6\n", setting.path("libvgpu.so").display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), preload, "{}", error(&output));
        for (name, number) in [("INT", 2), ("HUP", 1), ("USR1", 10)] {
            let script = format!("trap 'echo got; exit {number}' {name}; echo ready; while :; do sleep 0.1; done");
            let mut child = setting.start("--mem 1Gi", &["sh", "-c", &script]);
            signal(child.id(), name);
            assert_eq!(child.wait().unwrap().code(), Some(number), "{name}");
        }
        assert_eq!(setting.left(), Vec::<PathBuf>::new());
    });
}

#[test]
fn programs_that_cannot_be_limited_are_not_started() {
    as_each_user(|setting| {
        let mark = setting.path("state/started");
        let touch = ["touch", mark.to_str().unwrap()];
        let refused = |options: &str, command: &[&str], expected: &str| {
            let output = setting.output(options, command);
            assert!(!output.status.success() && error(&output).contains(expected), "{options} {command:?}: {output:?}");
            assert!(!mark.exists() && setting.left().is_empty(), "{options} {command:?}: {:?}", setting.left());
        };
        refused("", &touch, "--mem <SIZE>");
        refused("--mem 4Gb", &touch, "vgpu: --mem: \"4Gb\": expected a positive integer (MiB) or a quantity");
        refused("--mem 9Gi", &touch, "vgpu: --mem: \"9Gi\": expected at most 8192 MiB (the operator's ceiling)");
        refused("--cores 200", &touch, "vgpu: --cores: \"200\": expected an integer from 1 to 100");
        refused("--cores 30 --gpus 7", &touch, "vgpu: --gpus: \"7\": expected a comma-separated list of 0 (GPU-");
        refused("--mem 1Gi", &["/bin/busybox", "touch", touch[1]], "expected a dynamically linked program");
        refused("--mem 1Gi", &["no-such-program"], "no-such-program: expected a program in PATH");
        let absent = setting.vgpu("run").args(["--mem", "1Gi", "--library", "/nowhere.so", "--"]).args(touch).output().unwrap();
        assert!(absent.status.code() == Some(125) && error(&absent).contains("cannot find the library /nowhere.so"), "{absent:?}");
        let nested = setting.run("--mem 1Gi", &touch).env("VGPU_DIR", "/x").output().unwrap();
        assert!(nested.status.code() == Some(125) && error(&nested).contains("expected a program that has no limits yet"), "{nested:?}");
        assert!(!mark.exists());
    });
}

#[test]
fn only_the_chosen_gpus_are_visible() {
    let Some(mut setting) = Setting::new(USER) else { return };
    setting.machine = Machine::simulated(&Kit::find(), &["gpus=2"]);
    let state = setting.machine.state().unwrap();
    std::fs::set_permissions(state.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&state, Permissions::from_mode(0o666)).unwrap();
    let run = |gpu: &str| setting.output("--mem 1Gi --gpus 1", &["fill", "--gpu", gpu, "--chunk", "64M"]);
    let fill = Fill::of(&String::from_utf8_lossy(&run("0").stdout));
    assert_eq!((fill.error.as_str(), fill.total), ("CUDA_ERROR_OUT_OF_MEMORY", 1024 * MIB));
    assert!(!run("1").status.success(), "there is no second GPU for it");
}
