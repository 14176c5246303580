//! Start and stop of a trace.

use super::recorders::recorder;
use super::sink::{current, start};
use crate::entry_points::names::COUNT;
use crate::loader::symbols;
use crate::session::Session;

/// Starts or stops the trace as the limits page says. Called whenever the generation of the page has changed.
#[cold]
pub fn apply(session: &'static Session) {
    let is_traced = session.limits.is_traced() && (current().is_some() || start(session).is_some());
    // While the trace lasts, recorders are between the hooks and the driver.
    for entry in 0..COUNT {
        if let Some(recorder) = recorder(entry) {
            symbols::redirect(entry, is_traced.then_some(recorder));
        }
    }
}
