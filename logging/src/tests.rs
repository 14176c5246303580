use super::*;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::Level;

/// Collects what a subscriber writes.
#[derive(Clone, Debug, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Buffer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Buffer {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Logs three events and returns the lines that the subscriber wrote.
fn logged<S: Subscriber + Send + Sync + 'static>(make: impl FnOnce(Buffer) -> S) -> Vec<String> {
    let buffer = Buffer::default();
    tracing::subscriber::with_default(make(buffer.clone()), || {
        tracing::debug!(target: "vgpu_monitor::test", "detail");
        tracing::info!(target: "vgpu_monitor::test", container = "a\nb\u{1b}[31m", gpu = 3, "limits changed");
        tracing::error!(target: "other", "failed");
    });
    buffer.lines()
}

fn by_level(level: Option<&str>) -> Targets {
    filter(level, None).unwrap()
}

#[test]
fn text_has_level_target_and_fields_on_one_line() {
    let lines = logged(|buffer| text(by_level(None), buffer, false));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains(" INFO vgpu_monitor::test: limits changed "), "{lines:?}");
    assert!(lines[0].contains(r#"container="a\nb\u{1b}[31m" gpu=3"#), "{lines:?}");
    assert!(lines[1].contains("ERROR other: failed"), "{lines:?}");
}

#[test]
fn text_is_coloured_only_on_request() {
    let has_colour = |colour| logged(|buffer| text(by_level(None), buffer, colour)).iter().any(|line| line.contains('\u{1b}'));
    assert!(has_colour(true) && !has_colour(false));
}

#[test]
fn json_has_one_object_a_line() {
    let lines = logged(|buffer| json(by_level(None), buffer));
    let events: Vec<serde_json::Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2, "{lines:?}");
    let event = &events[0];
    assert_eq!((&event["level"], &event["target"]), (&"INFO".into(), &"vgpu_monitor::test".into()));
    assert_eq!((&event["message"], &event["gpu"]), (&"limits changed".into(), &3.into()));
    assert_eq!(event["container"], "a\nb\u{1b}[31m");
    assert!(event["timestamp"].is_string());
}

#[test]
fn levels_filter_by_severity_and_target() {
    let count = |level: &str| logged(|buffer| text(by_level(Some(level)), buffer, false)).len();
    let expected = [("off", 0), ("error", 1), ("WARN", 1), ("info", 2), ("debug", 3), ("vgpu_monitor=debug", 2), ("off, other=info,", 1)];
    for (level, events) in expected {
        assert_eq!(count(level), events, "{level}");
    }
}

#[test]
fn option_precedes_rust_log_and_info_is_the_default() {
    let max_level = |option, rust_log| filter(option, rust_log).unwrap().default_level().and_then(|level| level.into_level());
    assert_eq!(max_level(Some("debug"), Some("error")), Some(Level::DEBUG));
    assert_eq!(max_level(None, Some("error")), Some(Level::ERROR));
    assert_eq!(max_level(Some(" "), Some("")), Some(Level::INFO));
    assert_eq!(max_level(None, None), Some(Level::INFO));
}

#[test]
fn malformed_levels_are_refused() {
    for level in ["loud", "info,loud", "vgpu_monitor=loud", "6"] {
        let error = filter(Some(level), None).unwrap_err();
        assert!(error.to_string().starts_with(&format!("log level: {level:?}: expected off, error,")), "{error}");
    }
}

#[test]
fn options_parse_from_a_command_line() {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        log: Options,
    }
    let parse = |args: &[&str]| <Cli as clap::Parser>::try_parse_from(args).map(|cli| cli.log);
    let given = parse(&["daemon", "--log-format", "json", "--log-level", "debug"]).unwrap();
    assert_eq!(given, Options { format: Format::Json, level: Some("debug".to_owned()) });
    assert_eq!(parse(&["daemon"]).unwrap().format, Format::Text);
    assert!(parse(&["daemon", "--log-format", "xml"]).is_err());
}
