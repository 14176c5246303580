//! Beats by which a part shows its supervisor that it goes on.

use std::io;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Shortest time between two beats.
const INTERVAL: Duration = Duration::from_millis(500);

/// A part's end.
#[derive(Debug)]
pub struct Pulse {
    stream: UnixStream,
    last: Option<Instant>,
}

impl Pulse {
    /// Returns both ends. Neither waits for the other.
    ///
    /// # Errors
    /// The kernel refuses the sockets.
    pub fn pair() -> io::Result<(Self, Monitor)> {
        let (part, supervisor) = UnixStream::pair()?;
        part.set_nonblocking(true)?;
        supervisor.set_nonblocking(true)?;
        Ok((Self { stream: part, last: None }, Monitor(supervisor)))
    }

    /// Beats, unless the last beat was just before.
    pub fn beat(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            self.last = Some(Instant::now());
            // A supervisor that does not read is not waited for.
            let _ = self.stream.write(&[1]);
        }
    }
}

impl From<OwnedFd> for Pulse {
    fn from(stream: OwnedFd) -> Self {
        Self { stream: stream.into(), last: None }
    }
}

impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Monitor(UnixStream);

impl Monitor {
    /// Returns whether the part has beaten since the last call.
    pub fn has_beaten(&mut self) -> bool {
        let mut has_beaten = false;
        loop {
            match self.0.read(&mut [0; 64]) {
                Ok(1..) => has_beaten = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return has_beaten,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_seen_once_and_neither_end_waits() {
        let (mut pulse, mut monitor) = Pulse::pair().unwrap();
        assert!(!monitor.has_beaten());
        pulse.beat();
        pulse.beat();
        assert!(monitor.has_beaten() && !monitor.has_beaten());
        for _ in 0..100_000 {
            pulse.last = None;
            pulse.beat();
        }
        assert!(monitor.has_beaten() && !monitor.has_beaten());
        drop(pulse);
        assert!(!monitor.has_beaten());
    }
}
