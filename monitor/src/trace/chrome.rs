//! Writer of the Trace Event Format, which Perfetto, `chrome://tracing` and `trace_processor` open.
//!
//! The array form is used, which is valid at any time as the closing bracket may be missing. Each process has its threads, and a track for
//! each stream with the work on the GPU; an arrow leads from a call to its work. The GPU's categories are those of PyTorch's profiler:
//! `kernel`, `gpu_memcpy`, `gpu_memset`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::json;
use vgpu_region::trace::{CAPTURED, Direction, FAILED, Kind};

use super::event::Event;

/// Start of every trace of vgpu.
pub const HEAD: &[u8] = b"[\n{\"ph\":\"M\",\"name\":\"process_labels\",";
/// Number of the first stream's track. Above any thread ID.
const FIRST_TRACK: u64 = 0x4000_0000;
/// Nanoseconds in an hour. Times count from the begin of the hour before the first event's.
const HOUR: u64 = 3_600_000_000_000;
/// Upper limit of tracks and of named processes, as a tenant may claim any number.
const MAX_TRACKS: usize = 1024;

/// Writer of one trace.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    written: u64,
    first: bool,
    base: Option<u64>,
    tracks: HashMap<(u32, u8, u64), u64>,
    names: HashMap<u32, String>,
    arrows: u64,
}

/// Formats nanoseconds as microseconds with three decimals.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the direction of a copy.
fn direction(event: &Event) -> &'static str {
    match event.what.name {
        number if number == Direction::ToDevice as u16 => "HtoD",
        number if number == Direction::ToHost as u16 => "DtoH",
        number if number == Direction::Within as u16 => "DtoD",
        _ => "by address",
    }
}

/// Returns name and category of an event's slice on the GPU.
fn on_gpu(event: &Event) -> (String, &'static str) {
    match event.kind {
        Kind::Kernel if event.name.is_empty() => ("kernel".to_owned(), "kernel"),
        Kind::Kernel => (event.name.to_string(), "kernel"),
        Kind::Graph => ("graph".to_owned(), "graph"),
        Kind::Copy => (format!("Memcpy {}", direction(event)), "gpu_memcpy"),
        _ => ("Memset".to_owned(), "gpu_memset"),
    }
}

/// Returns name and category of an event's slice on the host.
fn on_host(event: &Event) -> (&str, &'static str) {
    match event.kind {
        Kind::Start => ("traced from here", "process"),
        Kind::Init => ("cuInit", "driver"),
        Kind::Budget => ("wait for budget", "budget"),
        Kind::Turn => ("another container's turn", "turn"),
        Kind::Refused => ("refused: memory limit", "refused"),
        Kind::MoveOut => ("memory to the host", "memory"),
        Kind::MoveIn => ("memory to the GPU", "memory"),
        Kind::Allocate | Kind::Free => (&event.call, "memory"),
        Kind::Synchronize => (&event.call, "wait"),
        Kind::Kernel | Kind::Graph | Kind::Copy | Kind::Fill | Kind::Other => (&event.call, "driver"),
    }
}

/// Returns the arguments of an event's slices.
fn details(event: &Event) -> serde_json::Value {
    let hex = |value: u64| format!("{value:#x}");
    let mut details = match event.kind {
        Kind::Kernel => json!({ "kernel": &*event.name, "kernels": event.size, "stream": hex(event.target) }),
        Kind::Graph => json!({ "kernels": event.size, "stream": hex(event.target) }),
        Kind::Copy => json!({ "bytes": event.size, "direction": direction(event), "stream": hex(event.target) }),
        Kind::Fill => json!({ "elements": event.size, "stream": hex(event.target) }),
        Kind::Allocate => json!({ "bytes": event.size, "address": hex(event.target) }),
        Kind::Free => json!({ "address": hex(event.target) }),
        Kind::Refused => json!({ "bytes": event.size }),
        Kind::MoveOut | Kind::MoveIn => json!({ "bytes": event.size, "gpu": event.target }),
        Kind::Synchronize | Kind::Budget | Kind::Turn => json!({ "stream": hex(event.target) }),
        Kind::Start => json!({ "program": &*event.name, "since_1970_ns": event.begin_ns.to_string() }),
        Kind::Init | Kind::Other => json!({}),
    };
    if let Some(details) = details.as_object_mut() {
        for (flag, name) in [(FAILED, "failed"), (CAPTURED, "captured")] {
            if event.has(flag) {
                details.insert(name.to_owned(), true.into());
            }
        }
    }
    details
}

impl<W: Write> Writer<W> {
    /// Starts a trace.
    ///
    /// # Errors
    /// Writing fails.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"[")?;
        let mut this = Self { out, written: 1, first: true, base: None, tracks: HashMap::new(), names: HashMap::new(), arrows: 0 };
        // Perfetto recognizes an array as a trace only if it contains an event.
        let by = concat!("vgpu ", env!("CARGO_PKG_VERSION"));
        this.put(&format!(r#"{{"ph":"M","name":"process_labels","pid":0,"tid":0,"ts":0,"args":{{"labels":"{by}"}}}}"#))?;
        Ok(this)
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        let separator = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        self.written += (separator.len() + text.len()) as u64;
        self.out.write_all(separator.as_bytes())?;
        self.out.write_all(text.as_bytes())
    }

    fn label(&mut self, what: &str, pid: u32, thread: u64, name: &str) -> io::Result<()> {
        let name = quoted(name);
        self.put(&format!(r#"{{"ph":"M","name":"{what}","pid":{pid},"tid":{thread},"ts":0,"args":{{"name":{name}}}}}"#))
    }

    /// Returns the number of a stream's track, which is named on first use. `None` above the limit.
    fn track(&mut self, event: &Event) -> io::Result<Option<u64>> {
        let key = (event.pid, event.what.context, event.target);
        if let Some(track) = self.tracks.get(&key) {
            return Ok(Some(*track));
        }
        if self.tracks.len() >= MAX_TRACKS {
            return Ok(None);
        }
        let track = FIRST_TRACK + self.tracks.len() as u64;
        self.tracks.insert(key, track);
        self.label("thread_name", event.pid, track, &format!("GPU: context {}, stream {:#x}", event.what.context, event.target))?;
        Ok(Some(track))
    }

    /// Writes one event.
    ///
    /// # Errors
    /// Writing fails.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        // Readers store times as doubles, whose resolution since 1970 would be a quarter of a microsecond.
        let base = *self.base.get_or_insert((event.begin_ns - event.begin_ns % HOUR).saturating_sub(HOUR));
        let since = |nanos: u64| micros(nanos.saturating_sub(base));
        let (pid, thread, ts) = (event.pid, event.thread, since(event.begin_ns));
        if event.kind == Kind::Start && self.names.len() < MAX_TRACKS {
            self.names.insert(pid, event.name.to_string());
            self.label("process_name", pid, 0, &event.name)?;
        }
        let (name, category) = on_host(event);
        let (name, args) = (quoted(name), details(event));
        let head = format!(r#""name":{name},"cat":"{category}","pid":{pid},"tid":{thread},"ts":{ts}"#);
        match event.kind {
            Kind::Start | Kind::Refused => self.put(&format!(r#"{{"ph":"i","s":"t",{head},"args":{args}}}"#))?,
            _ => self.put(&format!(r#"{{"ph":"X",{head},"dur":{},"args":{args}}}"#, micros(event.took_ns)))?,
        }
        let Some((begin, took)) = event.gpu else { return Ok(()) };
        let Some(track) = self.track(event)? else { return Ok(()) };
        let (name, category) = on_gpu(event);
        let (name, begin, took) = (quoted(&name), since(begin), micros(took));
        self.put(&format!(
            r#"{{"ph":"X","name":{name},"cat":"{category}","pid":{pid},"tid":{track},"ts":{begin},"dur":{took},"args":{args}}}"#
        ))?;
        self.arrows += 1;
        let mut arrow = String::new();
        for (phase, thread, ts) in [(r#""ph":"s""#, u64::from(thread), &ts), (r#""ph":"f","bp":"e""#, track, &begin)] {
            arrow.clear();
            let id = self.arrows;
            _ = write!(arrow, r#"{{{phase},"id":{id},"name":"launch","cat":"launch","pid":{pid},"tid":{thread},"ts":{ts}}}"#);
            self.put(&arrow)?;
        }
        Ok(())
    }

    /// Flushes buffered events.
    ///
    /// # Errors
    /// Writing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Completes the trace.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]\n")?;
        self.out.flush()?;
        Ok(self.out)
    }
}
