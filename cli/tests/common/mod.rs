//! Helpers of the tests with real containers on simulated GPUs: the `vgpu` command and a running `vgpu monitor`.
#![allow(dead_code, reason = "no test uses all helpers")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use vgpu_e2e::{Kit, Machine, host};
use vgpu_test_harness::{Host, Runtime, can_run};

/// Timeout of every wait, long enough for a busy machine: memory that moves stays for sixty times what its last move took.
pub const TIMEOUT: Duration = Duration::from_secs(180);

/// Returns the command `vgpu` for a host with simulated GPUs.
pub fn vgpu(host: &Host, machine: &Machine) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    for (name, value) in machine.program("held").get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("VGPU_CONFIG", host.policy_file());
    command
}

/// Runs a command that must succeed, and returns its standard output.
pub fn stdout(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Running `vgpu monitor`, which is killed when dropped.
pub struct Monitor {
    child: Child,
    pub lines: Receiver<String>,
    address: String,
}

impl Monitor {
    /// Starts the monitor with the capabilities that its systemd unit grants.
    pub fn start(host: &Host, machine: &Machine) -> Self {
        Self::start_with(host, machine, &[])
    }

    /// The same with more arguments.
    pub fn start_with(host: &Host, machine: &Machine, args: &[&str]) -> Self {
        let unit = include_str!("../../../packaging/systemd/vgpu-monitor.service");
        let privileges = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let kept: String = privileges.split(' ').map(|name| name.to_lowercase().replace("cap_", ",+")).collect();
        let vgpu = vgpu(host, machine);
        let mut command = Command::new("setpriv");
        command.envs(vgpu.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["--no-new-privs", &format!("--bounding-set=-all{kept}"), "--inh-caps=-all"]).arg(vgpu.get_program());
        command.args(["monitor", "--listen", "127.0.0.1:0", "--node", "here"]).args(args);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
        let first = lines.recv_timeout(TIMEOUT).unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_else(|| panic!("{first}"));
        Self { address: address.to_owned(), child, lines }
    }

    /// Returns the address that the monitor listens on.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the PID of the supervisor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the PIDs of the parts by their names.
    pub fn parts(&self) -> BTreeMap<String, u32> {
        children(self.pid()).into_iter().filter_map(|(pid, name)| Some((name.strip_prefix("vgpu-")?.to_owned(), pid))).collect()
    }

    /// Sends SIGTERM, and returns how the monitor ends.
    pub fn terminate(&mut self) -> ExitStatus {
        signal(self.pid(), "TERM");
        self.child.wait().unwrap()
    }

    /// Sends an HTTP GET request, and returns the whole response.
    pub fn get(&self, path: &str) -> String {
        self.try_get(path).unwrap()
    }

    /// The same, unless the connection fails, as it does while the part that answers is started again.
    pub fn try_get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).ok()?;
        (!response.is_empty()).then(|| dechunk(&response))
    }

    /// Returns the files that the monitor's parts have mapped, as `/proc` lists them.
    pub fn maps(&self) -> String {
        let pid = self.child.id();
        let parts = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        // A part may end meanwhile.
        parts.split_whitespace().filter_map(|part| std::fs::read_to_string(format!("/proc/{part}/maps")).ok()).collect()
    }

    /// Returns the value of a metric for the container with this id.
    pub fn value(&self, name: &str, id: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(id))?;
        line.rsplit(' ').next()?.trim().parse().ok()
    }

    /// Waits for a log line that contains `text`. Returns it and all lines before it.
    pub fn wait_for_log(&self, text: &str) -> Vec<String> {
        let (start, mut lines) = (Instant::now(), Vec::new());
        while start.elapsed() < TIMEOUT {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) else { continue };
            lines.push(line);
            if lines.iter().any(|line| line.contains(text)) {
                return lines;
            }
        }
        panic!("no line with {text:?} in {lines:#?}");
    }
}

/// Returns the PIDs and names of a process's children.
pub fn children(parent: u32) -> Vec<(u32, String)> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let child = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        let is_zombie = field("State:")?.starts_with('Z');
        (field("PPid:")? == parent.to_string() && !is_zombie).then_some((pid, field("Name:")?))
    };
    pids.filter_map(child).collect()
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap().success(), "kill -{name} {pid}");
}

/// Returns a response whose body may be chunked, with a plain body.
fn dechunk(response: &[u8]) -> String {
    let split = |bytes: &[u8], at: &str| -> (String, Vec<u8>) {
        let found = bytes.windows(at.len()).position(|window| window == at.as_bytes()).unwrap();
        (String::from_utf8(bytes[..found].to_vec()).unwrap(), bytes[found + at.len()..].to_vec())
    };
    let (head, mut rest) = split(response, "\r\n\r\n");
    let mut body = Vec::new();
    while head.to_lowercase().contains("transfer-encoding: chunked") {
        let (size, chunk) = split(&rest, "\r\n");
        let size = usize::from_str_radix(&size, 16).unwrap();
        if size == 0 {
            rest.clear();
            break;
        }
        body.extend_from_slice(&chunk[..size]);
        rest = chunk[size + 2..].to_vec();
    }
    body.extend(rest);
    format!("{head}\r\n\r\n{}", String::from_utf8(body).unwrap())
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls a condition until it returns a value.
pub fn wait_for<T>(condition: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timeout: {condition}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a simulated machine and a host with runc; `None` if runc cannot run.
pub fn ready() -> Option<(Kit, Machine, Host)> {
    if !can_run(Runtime::Runc) {
        return None;
    }
    let kit = Kit::find();
    let (machine, host) = (Machine::simulated(&kit, &[]), host(&kit, Runtime::Runc));
    Some((kit, machine, host))
}
