//! A running `vgpu monitor`, and `vgpu` beside it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use vgpu_e2e::{Kit, Machine};
use vgpu_test_harness::Host;

/// The service, and what it has said when.
pub struct Monitor {
    child: Child,
    address: String,
    heard: Arc<Mutex<Vec<(Instant, String)>>>,
    vgpu: PathBuf,
    environment: Vec<(String, String)>,
}

/// `vgpu` on this host.
pub fn environment(host: &Host, machine: &Machine) -> Vec<(String, String)> {
    let program = machine.program("held");
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let mut found: Vec<_> = program.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))).collect();
    found.push(("VGPU_CONFIG".to_owned(), host.policy_file().to_string_lossy().into_owned()));
    found
}

impl Monitor {
    /// Starts it.
    pub fn start(kit: &Kit, host: &Host, machine: &Machine) -> Self {
        let (vgpu, environment) = (kit.path().join("vgpu"), environment(host, machine));
        let mut command = Command::new(&vgpu);
        command.envs(environment.clone()).args(["monitor", "--listen", "127.0.0.1:0", "--node", "here"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("vgpu monitor can be started");
        let mut output = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let first = output.next().expect("it says where it answers");
        let address = first.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_else(|| panic!("{first}"));
        let heard: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let here = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in output {
                eprintln!("{line}");
                here.lock().expect("nobody panics with it").push((Instant::now(), line));
            }
        });
        Self { child, address: address.to_owned(), heard, vgpu, environment }
    }

    /// What a subcommand prints, as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = Command::new(&self.vgpu).envs(self.environment.clone()).args(args).output().expect("vgpu can be started");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{args:?}: {why}: {output:?}"))
    }

    /// A metric's figure for the container with this id.
    pub fn figure(&self, name: &str, id: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let mut figures = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(id));
        figures.next()?.rsplit(' ').next()?.trim().parse().ok()
    }

    /// When it said this of a container, if it does within so long.
    pub fn hears(&self, words: &str, id: &str, patience: Duration) -> Option<Instant> {
        let start = Instant::now();
        loop {
            let heard = self.heard.lock().expect("nobody panics with it");
            // Who was ended is named by its container's name, or by its id where it has none.
            if let Some((at, _)) = heard.iter().find(|(_, line)| line.contains(words) && line.contains(id)) {
                return Some(*at);
            }
            drop(heard);
            if start.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
