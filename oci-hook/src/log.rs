//! Messages where people and callers look for them: containerd's shim reads the last error of the `--log` file in the format of
//! `--log-format`, people read stderr, and operators the host's journal, since an engine shows nobody the log of a container that starts.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::argv::Global;
use crate::journal;

/// The log of a program.
#[derive(Clone, Debug, Default)]
pub struct Log {
    program: &'static str,
    file: Option<PathBuf>,
    is_json: bool,
}

impl Log {
    /// Returns the log of `program` according to its global flags.
    #[must_use]
    pub fn new(program: &'static str, global: &Global) -> Self {
        // crun accepts a prefix with the kind of log. journald and syslog are not supported; stderr has to suffice.
        let file = global.log.as_ref().and_then(|path| match path.to_str() {
            Some(text) if text.starts_with("journald:") || text.starts_with("syslog:") => None,
            Some(text) => Some(PathBuf::from(text.strip_prefix("file:").unwrap_or(text))),
            None => Some(path.clone()),
        });
        Self { program, file, is_json: global.log_format.as_deref() == Some("json") }
    }

    /// Writes the reason for which the container is not started, to the log file and stderr.
    pub fn error(&self, message: &str) {
        eprintln!("{}: {message}", self.program);
        self.write("error", message);
    }

    /// Writes a warning about a container that is started, to the log file and the host's journal.
    pub fn warning(&self, message: &str) {
        self.write("warning", message);
        journal::warning(self.program, message);
    }

    fn write(&self, level: &str, message: &str) {
        let Some(path) = &self.file else { return };
        let line = line(self.is_json, level, &format!("{}: {message}", self.program), SystemTime::now());
        let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(why) = written {
            eprintln!("{}: cannot write the log: {why}", self.program);
        }
    }
}

/// Formats one line as runc's logger does.
fn line(is_json: bool, level: &str, message: &str, at: SystemTime) -> String {
    let time = humantime::format_rfc3339_seconds(at);
    if is_json {
        let entry = serde_json::json!({ "level": level, "msg": message, "time": time.to_string() });
        return format!("{entry}\n");
    }
    let escaped: String = message
        .chars()
        .map(|c| match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            c if c.is_control() => c.escape_default().to_string(),
            c => c.to_string(),
        })
        .collect();
    format!("time=\"{time}\" level={level} msg=\"{escaped}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_one_line() {
        let message = "annotation a: \"1\\n\": expected \u{7} nothing\n";
        let text = line(false, "error", message, SystemTime::UNIX_EPOCH);
        assert_eq!(text, "time=\"1970-01-01T00:00:00Z\" level=error msg=\"annotation a: \\\"1\\\\n\\\": expected \\u{7} nothing\\n\"\n");
        let json = line(true, "error", message, SystemTime::UNIX_EPOCH);
        assert_eq!(json.matches('\n').count(), 1);
        let entry: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&entry["level"], &entry["msg"], &entry["time"]), (&"error".into(), &message.into(), &"1970-01-01T00:00:00Z".into()));
    }

    #[test]
    fn cruns_log_prefixes() {
        let file_of = |log: &str| Log::new("x", &Global { log: Some(log.into()), ..Global::default() }).file;
        assert_eq!(file_of("/tmp/a"), Some("/tmp/a".into()));
        assert_eq!(file_of("file:/tmp/a"), Some("/tmp/a".into()));
        assert_eq!(file_of("journald:x"), None);
    }
}
