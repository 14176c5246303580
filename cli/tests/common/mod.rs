//! What the tests with real containers on simulated GPUs have in common: `vgpu` on such a host, and a running `vgpu monitor`.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use vgpu_e2e::{Kit, Machine, host};
use vgpu_test_harness::{Host, Runtime, can_run};

/// Long enough for anything here on a busy machine; what takes no time does not wait for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `vgpu` on a host with simulated GPUs.
pub fn vgpu(host: &Host, machine: &Machine) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu"));
    for (name, value) in machine.program("held").get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("VGPU_CONFIG", host.policy_file());
    command
}

pub fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A running `vgpu monitor`.
pub struct Monitor {
    child: Child,
    pub lines: Receiver<String>,
    address: String,
}

impl Monitor {
    pub fn start(host: &Host, machine: &Machine) -> Self {
        // With nothing but the privileges that its unit gives it.
        let unit = include_str!("../../../packaging/systemd/vgpu-monitor.service");
        let privileges = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let kept: String = privileges.split(' ').map(|name| name.to_lowercase().replace("cap_", ",+")).collect();
        let vgpu = vgpu(host, machine);
        let mut command = Command::new("setpriv");
        command.envs(vgpu.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["--no-new-privs", &format!("--bounding-set=-all{kept}"), "--inh-caps=-all"]).arg(vgpu.get_program());
        command.args(["monitor", "--listen", "127.0.0.1:0", "--node", "here"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let output = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
        let first = lines.recv_timeout(PATIENCE).unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_else(|| panic!("{first}"));
        Self { address: address.to_owned(), child, lines }
    }

    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        whole(&answer)
    }

    /// A metric's figure for the container with this id.
    pub fn figure(&self, name: &str, id: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(id))?;
        line.rsplit(' ').next()?.trim().parse().ok()
    }

    /// Waits until it says something that contains `words`. Gives that, and everything said before.
    pub fn hears(&self, words: &str) -> Vec<String> {
        let (start, mut heard) = (Instant::now(), Vec::new());
        while start.elapsed() < PATIENCE {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) else { continue };
            heard.push(line);
            if heard.iter().any(|line| line.contains(words)) {
                return heard;
            }
        }
        panic!("nothing about {words:?} in {heard:#?}");
    }
}

/// An answer whose body may have come in chunks.
fn whole(answer: &[u8]) -> String {
    let split = |bytes: &[u8], at: &str| -> (String, Vec<u8>) {
        let found = bytes.windows(at.len()).position(|window| window == at.as_bytes()).unwrap();
        (String::from_utf8(bytes[..found].to_vec()).unwrap(), bytes[found + at.len()..].to_vec())
    };
    let (head, mut rest) = split(answer, "\r\n\r\n");
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

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn ready() -> Option<(Kit, Machine, Host)> {
    if !can_run(Runtime::Runc) {
        return None;
    }
    let kit = Kit::find();
    let (machine, host) = (Machine::simulated(&kit, &[]), host(&kit, Runtime::Runc));
    Some((kit, machine, host))
}
