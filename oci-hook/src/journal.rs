//! The host's journal, for warnings about containers that start: engines show nobody the log of a runtime that succeeded.
//!
//! A message is one datagram to journald, or to the socket of another system log where there is no journald. Sending never waits, and a
//! message that cannot be sent is dropped: a container does not depend on the log.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// journald's socket for its own protocol.
const JOURNALD: &str = "/run/systemd/journal/socket";
/// The socket of syslog.
const SYSLOG: &str = "/dev/log";
/// syslog's severity of a warning.
const WARNING: u8 = 4;
/// syslog's facility of system daemons, as it is added to the severity.
const DAEMON: u8 = 3 << 3;

/// Sends a warning of `program` to the host's journal, if it has one.
pub(crate) fn warning(program: &str, message: &str) {
    send([Path::new(JOURNALD), Path::new(SYSLOG)], program, message);
}

fn send([journald, syslog]: [&Path; 2], program: &str, message: &str) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    // A new line would begin another field.
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let fields = format!("PRIORITY={WARNING}\nSYSLOG_IDENTIFIER={program}\nMESSAGE={message}\n");
    if socket.send_to(fields.as_bytes(), journald).is_err() {
        let line = format!("<{}>{program}[{}]: {message}", DAEMON | WARNING, std::process::id());
        let _ = socket.send_to(line.as_bytes(), syslog);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 1024];
        socket.set_nonblocking(true).unwrap();
        match socket.recv(&mut bytes) {
            Ok(length) => Some(String::from_utf8(bytes[..length].to_vec()).unwrap()),
            Err(why) => {
                assert_eq!(why.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }

    #[test]
    fn journald_is_preferred_to_syslog() {
        let dir = tempfile::tempdir().unwrap();
        let [journald, syslog] = ["journald", "syslog"].map(|name| dir.path().join(name));
        let send = || send([&journald, &syslog], "vgpu-hook", "a\nPRIORITY=0");
        send();
        let classic = UnixDatagram::bind(&syslog).unwrap();
        send();
        let line = format!("<28>vgpu-hook[{}]: a PRIORITY=0", std::process::id());
        assert_eq!(received(&classic).as_deref(), Some(line.as_str()));
        let modern = UnixDatagram::bind(&journald).unwrap();
        send();
        assert_eq!(received(&modern).as_deref(), Some("PRIORITY=4\nSYSLOG_IDENTIFIER=vgpu-hook\nMESSAGE=a PRIORITY=0\n"));
        assert_eq!(received(&classic), None);
    }

    #[test]
    fn nobody_waits_for_a_journal_that_does_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journald");
        let _full = UnixDatagram::bind(&path).unwrap();
        // More than any queue of datagrams holds; this test ends only because sending does not wait.
        (0..10_000).for_each(|_| send([&path, &path], "vgpu-hook", "full"));
    }
}
