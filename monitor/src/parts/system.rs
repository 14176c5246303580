//! Notifications to systemd, if it started the service with `Type=notify`.

use sd_notify::NotifyState;
use tracing::debug;

/// Service manager, whether there is one or not.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// Whether it was told that all parts go on.
    is_ready: bool,
}

impl ServiceManager {
    /// Tells that the supervisor goes on, and once that all parts do. Called more often than the unit's `WatchdogSec`.
    pub fn alive(&mut self, all_parts_beat: bool) {
        if all_parts_beat && !self.is_ready {
            self.is_ready = true;
            notify(&[NotifyState::Ready]);
        }
        notify(&[NotifyState::Watchdog]);
    }

    /// Tells that the service ends.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

/// Sends notifications, unless no service manager wants them.
fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(false, states) {
        debug!(%error, "cannot notify the service manager");
    }
}
