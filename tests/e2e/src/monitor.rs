//! A running `vgpu monitor`, and calls of `vgpu`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use vgpu_test_harness::Host;

use crate::{Kit, Machine};

/// The service and its log lines with their times. It is killed when dropped.
#[derive(Debug)]
pub struct Monitor {
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<(Instant, String)>>>,
    vgpu: PathBuf,
    environment: Vec<(String, String)>,
}

/// Returns the environment of `vgpu` on this host.
#[must_use]
pub fn environment(host: &Host, machine: &Machine) -> Vec<(String, String)> {
    let program = machine.program("held");
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let mut found: Vec<_> = program.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))).collect();
    found.push(("VGPU_CONFIG".to_owned(), host.policy_file().to_string_lossy().into_owned()));
    found
}

impl Monitor {
    /// Starts the service.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(kit: &Kit, host: &Host, machine: &Machine) -> Self {
        let (vgpu, environment) = (kit.path().join("vgpu"), environment(host, machine));
        let mut command = Command::new(&vgpu);
        command.envs(environment.clone()).args(["monitor", "--listen", "127.0.0.1:0", "--node", "here"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("vgpu monitor starts");
        let mut output = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
        let first = output.next().expect("a line with the address");
        let address = first.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_else(|| panic!("{first}"));
        let log: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let here = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in output {
                eprintln!("{line}");
                here.lock().expect("the lock is not poisoned").push((Instant::now(), line));
            }
        });
        Self { child, address: address.to_owned(), log, vgpu, environment }
    }

    /// Returns the address of its web page.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Runs a subcommand of `vgpu`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn output(&self, args: &[&str]) -> Output {
        Command::new(&self.vgpu).envs(self.environment.clone()).args(args).output().expect("vgpu starts")
    }

    /// Returns the output of a subcommand, as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.output(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"))
    }

    /// Returns the response with all metrics.
    #[must_use]
    pub fn scrape(&self) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Returns the value of a metric for the container with this id.
    #[must_use]
    pub fn figure(&self, name: &str, id: &str) -> Option<f64> {
        let text = self.scrape()?;
        let mut figures = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(id));
        figures.next()?.rsplit(' ').next()?.trim().parse().ok()
    }

    /// Returns its PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns when a log line had these words for a container; `None` after `patience`.
    ///
    /// # Panics
    /// If the thread that reads the log panicked.
    #[must_use]
    pub fn logged(&self, words: &str, id: &str, patience: Duration) -> Option<Instant> {
        let start = Instant::now();
        loop {
            let log = self.log.lock().expect("the lock is not poisoned");
            // A line has the container's name, or its id if it has no name.
            if let Some((at, _)) = log.iter().find(|(_, line)| line.contains(words) && line.contains(id)) {
                return Some(*at);
            }
            drop(log);
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
