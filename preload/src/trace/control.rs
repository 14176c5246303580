//! Starting and stopping a trace.

use super::recorders::recorder;
use super::sink::{current, start};
use crate::entry_points::names::COUNT;
use crate::loader::symbols;
use crate::session::Session;

/// Does what the limits page says: called whenever its generation has changed.
#[cold]
pub fn look(session: &'static Session) {
    let traced = session.limits.is_traced() && (current().is_some() || start(session).is_some());
    // Recorders stand between the hooks and the driver for as long as the trace lasts.
    for entry in 0..COUNT {
        if let Some(recorder) = recorder(entry) {
            symbols::redirect(entry, traced.then_some(recorder));
        }
    }
}
