//! Headless Chromium, controlled through its DevTools protocol over two pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Names of the browser's program.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Time for a condition on the page to hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page. It ends when dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    session: Option<String>,
    last_id: u64,
    /// Events that arrived so far.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser. `None` with a message on stderr if it is not installed.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let runs = |name: &&&str| Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
        let Some(program) = PROGRAMS.iter().find(runs) else {
            eprintln!("SKIPPED: Chromium is not installed (package chromium)");
            return None;
        };
        let profile = TempDir::with_prefix("vgpu-browser-").unwrap();
        let [requests, answers] = ["requests", "answers"].map(|name| profile.path().join(name));
        assert!(Command::new("mkfifo").args([&requests, &answers]).status().unwrap().success());
        // Its sandbox does not run as root, and it opens nothing but the page under test.
        let script = format!(
            r#"exec {program} --headless=new --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --hide-scrollbars \
            --remote-debugging-pipe --user-data-dir="$1/profile" about:blank 3<"$1/requests" 4>"$1/answers""#
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(profile.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let requests = File::options().write(true).open(requests).unwrap();
        let answers = BufReader::new(File::open(answers).unwrap());
        let mut this = Self { child, requests, answers, session: None, last_id: 0, events: Vec::new(), _profile: profile };
        let target = this.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let session = this.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }))["sessionId"].clone();
        this.session = session.as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            let _ = this.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(this)
    }

    /// Calls a method of the protocol, and returns its result.
    ///
    /// # Panics
    /// If the browser has ended, or refuses the call.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut text = Vec::new();
            self.answers.read_until(0, &mut text).unwrap();
            assert_eq!(text.pop(), Some(0), "the browser has ended");
            let mut answer: Value = serde_json::from_slice(&text).unwrap();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Opens an address, and returns once its document is loaded.
    pub fn open(&mut self, url: &str) {
        let _ = self.call("Page.navigate", &json!({ "url": url }));
        self.wait("document.readyState === 'complete'");
    }

    /// Sets the size of the window in pixels, and the colour scheme.
    pub fn resize(&mut self, width: u32, height: u32, is_dark: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        let _ = self.call("Emulation.setDeviceMetricsOverride", &metrics);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        let _ = self.call("Emulation.setEmulatedMedia", &features);
    }

    /// Returns the value of an expression, which may be a promise.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it does not become true.
    pub fn wait(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != true {
            if start.elapsed() > PATIENCE {
                let text = self.value("document.body.innerText");
                panic!("{expression}: {}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key, by its name in the DOM, such as `Tab`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            _ => (0, key),
        };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let down = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        let _ = self.call("Input.dispatchKeyEvent", &down);
        let _ = self.call("Input.dispatchKeyEvent", &json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code }));
    }

    /// Writes a picture of the window as PNG.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn picture(&mut self, path: &Path) {
        let picture = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let encoded = picture["data"].as_str().expect("a picture");
        let mut decoder = Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(File::create(path).unwrap()).spawn().unwrap();
        decoder.stdin.take().expect("a pipe").write_all(encoded.as_bytes()).unwrap();
        assert!(decoder.wait().unwrap().success(), "{}", path.display());
    }

    /// Returns the errors that the page has written to the console so far.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        let is_error = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => event["params"]["type"] == "error",
            "Log.entryAdded" => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_error).map(ToString::to_string).collect()
    }

    /// Returns the addresses that the page has requested so far.
    #[must_use]
    pub fn requested(&self) -> Vec<String> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.filter_map(|event| event["params"]["request"]["url"].as_str().map(str::to_owned)).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // The browser ends on its own when it is asked to, and then so do its processes.
        let _ = writeln!(self.requests, "{}\0", json!({ "id": 0, "method": "Browser.close" }));
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
