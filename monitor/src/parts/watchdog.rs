//! Watchdog of the supervisor, which watches the other parts.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// A watchdog, which barks unless it is fed. It ends with this value.
#[derive(Debug)]
pub struct Watchdog(SyncSender<()>);

impl Watchdog {
    /// Starts a thread that calls `bark` once if it is not fed for `timeout`.
    ///
    /// # Errors
    /// The kernel refuses the thread.
    pub fn start(timeout: Duration, bark: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (food, fed) = sync_channel(1);
        let watch = move || {
            loop {
                match fed.recv_timeout(timeout) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) => return bark(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Self(food))
    }

    /// Feeds it. Never waits.
    pub fn feed(&self) {
        let _ = self.0.try_send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn it_barks_only_if_it_is_not_fed() {
        let (barked, heard) = channel();
        let hungry = barked.clone();
        let _unfed = Watchdog::start(Duration::from_millis(1), move || hungry.send("hungry").unwrap()).unwrap();
        assert_eq!(heard.recv(), Ok("hungry"));
        let fed = Watchdog::start(Duration::from_secs(3600), move || barked.send("fed").unwrap()).unwrap();
        (0..1000).for_each(|_| fed.feed());
        drop(fed);
        assert!(heard.recv().is_err(), "it ended without a bark");
    }
}
