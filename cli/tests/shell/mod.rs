//! A shell for the transcripts of the documents: runs their commands on a simulated machine, and prints paths as on an installed one.
//!
//! `docker run` creates a container of a bundle as Docker makes them, by vgpu-runtime and runc; Docker's own words are left out.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use vgpu_e2e::{Kit, Machine};
use vgpu_test_harness::{Bundle, Host};

use super::common;

/// Programs by the image that has them.
const IMAGES: [(&str, &[&str]); 4] = [
    ("trainer", &["/programs/fill", "--chunk", "16M", "--max", "256M", "--hold", "600"]),
    ("renderer", &["/programs/spin", "--ns", "1000000", "--seconds", "600", "--wait"]),
    ("too-large", &["/programs/fill", "--chunk", "64M", "--max", "2G"]),
    ("job", &["/bin/true"]),
];
/// Subjects of `vgpu check` that tell of the machine: their lines depend on where the test runs.
const OF_MACHINE: [&str; 9] =
    ["driver", "nvidia toolkit", "kernel", "cgroups", "vgpu-runtime", "vgpu-hook", "state", "low-level runtime", "library"];
/// Engines that may be installed.
const ENGINES: [&str; 5] = ["docker", "containerd", "crio", "podman", "runtimes"];

/// A running container of `docker run -d`.
struct Detached {
    child: Child,
    delete: Command,
    _bundle: Bundle,
}

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = self.delete.status();
        let _ = self.child.wait();
    }
}

/// The machine on which the commands run.
pub struct Shell<'a> {
    machine: &'a Machine,
    host: &'a Host,
    /// The folder with the programs, Docker's folders and the working directory.
    folder: TempDir,
    /// What is printed instead of the machine's own paths, the longest first.
    paths: Vec<(String, &'static str)>,
    containers: Vec<Detached>,
    /// Number of containers so far.
    created: u64,
    /// Exit status of the last command.
    status: i32,
}

impl<'a> Shell<'a> {
    pub fn new(kit: &Kit, machine: &'a Machine, host: &'a Host) -> Self {
        let folder = TempDir::with_prefix("vgpu-shell-").unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
        // Other users may not reach the build's folder.
        fs::copy(env!("CARGO_BIN_EXE_vgpu"), bin.join("vgpu")).unwrap();
        for name in ["vgpu-runtime", "vgpu-hook"] {
            symlink(kit.path().join(name), bin.join(name)).unwrap();
        }
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let paths = vec![
            (text(host.library().to_owned()), "/usr/lib/vgpu/libvgpu.so"),
            (text(host.policy_file()), "/etc/vgpu/config.toml"),
            (text(host.state_dir()), "/run/vgpu"),
            (text(kit.path().to_owned()), "/usr/bin"),
            (text(bin), "/usr/bin"),
        ];
        Self { machine, host, folder, paths, containers: Vec::new(), created: 0, status: 0 }
    }

    /// Ends all containers, and removes what the policy says.
    pub fn begin(&mut self) {
        self.containers.clear();
        self.host.policy("");
    }

    /// Sets the policy, besides its paths.
    pub fn policy(&self, text: &str) {
        self.host.policy(text);
    }

    /// Runs a line of a transcript. Returns what it prints, to stdout and stderr.
    pub fn run(&mut self, line: &str) -> String {
        let (prompt, command) = line.split_at(2);
        let found = match command.strip_prefix("docker run ") {
            Some(options) => self.docker_run(&options.split_whitespace().collect::<Vec<_>>()),
            None => self.sh(prompt, command),
        };
        let plain = self.paths.iter().fold(found, |text, (path, instead)| text.replace(path, instead));
        plain.trim_end().to_owned()
    }

    fn sh(&mut self, prompt: &str, command: &str) -> String {
        let vgpu = common::vgpu(self.host, self.machine);
        let mut shell = Command::new(if prompt == "$ " { "setpriv" } else { "sh" });
        if prompt == "$ " {
            shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
        }
        let path = format!("{}:{}", self.folder.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
        shell.envs(vgpu.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("PATH", path);
        shell.arg("-c").arg(format!("exec 2>&1; (exit {}); {command}", self.status)).current_dir(self.folder.path().join("home"));
        let output = shell.stdin(Stdio::null()).output().unwrap();
        self.status = output.status.code().unwrap_or(-1);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a container; with `-d` in the background, after its program has begun.
    fn docker_run(&mut self, options: &[&str]) -> String {
        let mut bundle = self.machine.bundle().env("NVIDIA_VISIBLE_DEVICES", "all");
        let (mut name, mut is_detached, mut options) = ("", false, options.iter().copied());
        let image = loop {
            let option = options.next().expect("an image");
            let mut value = || options.next().expect("a value");
            let pair = |text: &'_ str| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).expect("KEY=VALUE");
            match option {
                "-d" => is_detached = true,
                "--rm" => {}
                "--runtime" | "--gpus" => _ = value(),
                "--name" => name = value(),
                "--annotation" => {
                    bundle = {
                        let (key, value) = pair(value());
                        bundle.annotation(&key, &value)
                    }
                }
                "-e" => {
                    bundle = {
                        let (key, value) = pair(value());
                        bundle.env(&key, &value)
                    }
                }
                image => break image,
            }
        };
        let (_, program) = IMAGES.iter().find(|(known, _)| *known == image).unwrap_or_else(|| panic!("no image {image}"));
        let (id, bundle) = self.as_dockers(bundle.args(program), name);
        bundle.write();
        let mut run = self.host.command();
        run.args(["run", "--bundle"]).arg(bundle.path()).arg(&id).stdin(Stdio::null());
        if !is_detached {
            let output = run.output().unwrap();
            return [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        }
        let mut child = run.stdout(Stdio::piped()).spawn().unwrap();
        let mut delete = self.host.bare_command();
        delete.args(["delete", "--force", &id]).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        self.containers.push(Detached { child, delete, _bundle: bundle });
        id
    }

    /// Makes a bundle one of Docker's: in its folder, with an ID, and with Docker's record of the container.
    fn as_dockers(&mut self, bundle: Bundle, name: &str) -> (String, Bundle) {
        self.created += 1;
        // Looks like an ID of Docker's, and is the same each time. They ascend, as containers of the same second are listed by ID.
        let digit = |nth: u64| (self.created * 64 + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let digits = std::iter::once(self.created % 16).chain((1..64).map(digit));
        let id: String = digits.map(|digit| format!("{digit:x}")).collect();
        let record = self.folder.path().join("docker/containers").join(&id);
        fs::create_dir_all(&record).unwrap();
        fs::write(record.join("hostname"), "test\n").unwrap();
        let json = serde_json::json!({ "ID": id, "Name": format!("/{name}") });
        fs::write(record.join("config.v2.json"), json.to_string()).unwrap();
        let placed = self.folder.path().join("run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby").join(&id);
        (id, bundle.bind(&record.join("hostname"), "/etc/hostname", &["ro"]).placed_in(&placed))
    }
}

/// Returns whether two outputs are the same but for what differs each time: use of GPU time, durations, PIDs, counts of a trace, and
/// what `vgpu check` finds on the machine.
pub fn same(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(comparable);
    one == other
}

fn comparable(text: &str) -> Vec<String> {
    let is_check = text.lines().any(|line| line.starts_with("ok    policy") || line.starts_with("fail  policy"));
    let mut is_left_out = false;
    text.lines()
        .filter_map(|line| {
            let subject = line.get(6..25).map(str::trim).unwrap_or_default();
            let is_finding = is_check && !line.starts_with(' ');
            if is_finding {
                is_left_out = OF_MACHINE.contains(&subject) || ENGINES.contains(&subject);
            }
            match (is_left_out, is_finding && OF_MACHINE.contains(&subject)) {
                // That the machine was examined.
                (true, true) => Some(subject.to_owned()),
                (true, false) => None,
                (false, _) => Some(words(line)),
            }
        })
        .collect()
}

/// Returns the words of a line, without figures that differ each time. The limits that `vgpu set` prints do not.
fn words(line: &str) -> String {
    let is_trace = line.starts_with("trace.json:");
    let is_process = line.split_whitespace().nth(1) == Some("root");
    let is_limit = line.contains("of the GPU's time");
    let word = |word: &str| {
        let (digits, unit) = word.split_at(word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len()));
        let is_number = !digits.is_empty();
        match word {
            _ if is_limit => word.to_owned(),
            _ if is_process && word.len() > 2 && digits == word => "PID".to_owned(),
            _ if is_number && (["%", "s", "m", "h", "d"].contains(&unit) || is_trace) => format!("N{unit}"),
            // Used, and the limit.
            _ if is_number && unit.starts_with('/') && unit.ends_with('%') => format!("N{unit}"),
            _ if word.chars().all(|c| "█▉▊▋▌▍▎▏·▁▂▃▄▅▆▇".contains(c)) => "BAR".to_owned(),
            _ => word.to_owned(),
        }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}
