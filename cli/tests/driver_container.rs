//! NVML in a container's files, where NVIDIA's GPU Operator installs the driver, instead of on the loader's search path.
//!
//! The programs run in a mount namespace whose `/run` is empty, and into which the simulated NVML is copied.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{ready, vgpu, wait_for};
use vgpu_e2e::Machine;
use vgpu_test_harness::Host;

/// Where the Operator's driver container has its libraries, as the host sees it.
const FOLDER: &str = "/run/nvidia/driver/usr/lib64";
const ENTER: &str = "mount -t tmpfs -o mode=755 tmpfs /run && exec \"$@\"";

/// Returns whether the loader finds a driver on this machine, so that no other is looked for.
fn has_driver() -> bool {
    let found = Command::new("sh").args(["-c", "ldconfig -p | grep libnvidia-ml.so.1"]).output().unwrap().status.success();
    if found {
        eprintln!("SKIPPED: this machine has a driver: expected none");
    }
    found
}

/// Mount namespace that lives until it is dropped.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", "sh", "-c", "echo ready; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child)
    }

    /// Returns a command that runs in it.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.0.id().to_string(), "--"]).arg(program);
        command
    }

    /// Returns the command `vgpu` in it, whose loader does not find the simulated driver.
    fn vgpu(&self, host: &Host, machine: &Machine) -> Command {
        let outside = vgpu(host, machine);
        let mut command = self.command(Path::new(outside.get_program()));
        command.envs(outside.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("LD_LIBRARY_PATH");
        command
    }

    fn sh(&self, script: &str) {
        let status = self.command(Path::new("sh")).args(["-c", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }

    /// Puts the driver in its place.
    fn install(&self, simgpu: &Path) {
        self.sh(&format!(
            "mkdir -p {FOLDER} && cp {}/libnvidia-ml.so.1 {FOLDER}/.new && mv {FOLDER}/.new {FOLDER}/libnvidia-ml.so.1",
            simgpu.display()
        ));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the standard output of a command.
fn said(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn the_command_finds_nvml_in_the_drivers_container() {
    let Some((kit, machine, host)) = ready().filter(|_| !has_driver()) else { return };
    let namespace = Namespace::new();
    let check = || said(namespace.vgpu(&host, &machine).arg("check"));
    let none = check();
    assert!(none.contains("libnvidia-ml.so.1 cannot be loaded, so there may be no driver"), "{none}");
    namespace.install(&kit.simgpu());
    let found = check();
    assert!(found.contains("0: NVIDIA H200 (simulated) GPU-"), "{found}");
    let shown: serde_json::Value = serde_json::from_str(&said(namespace.vgpu(&host, &machine).args(["show", "--json"]))).unwrap();
    assert_eq!((&shown["nvml_error"], shown["gpus"].as_array().map(Vec::len)), (&serde_json::Value::Null, Some(1)), "{shown}");

    // A library that others could have written is not loaded, and the reason is given.
    namespace.sh(&format!("chmod go+w {FOLDER}/libnvidia-ml.so.1"));
    let refused = check();
    let reason = format!("{FOLDER}/libnvidia-ml.so.1 is writable by users other than root, so {FOLDER}/libnvidia-ml.so.1 is not loaded");
    assert!(refused.contains(&reason), "{refused}");
}

#[test]
fn the_monitor_finds_a_driver_that_is_installed_later() {
    let Some((kit, machine, host)) = ready().filter(|_| !has_driver()) else { return };
    let namespace = Namespace::new();
    let mut monitor = namespace.vgpu(&host, &machine);
    let mut monitor = monitor.args(["monitor", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(monitor.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut wait = |text: &str| wait_for(text, || lines.next().filter(|line| line.contains(text)));
    wait("NVML is unavailable");
    namespace.install(&kit.simgpu());
    wait("NVML is available");
    common::signal(monitor.id(), "TERM");
    assert!(monitor.wait().unwrap().success());
}
