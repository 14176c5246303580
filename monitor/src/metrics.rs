//! Snapshots as Prometheus metrics: HAMi's names with HAMi's labels and units, and `vgpu_` names for the rest.

use crate::snapshot::Snapshot;

mod hami;
mod own;
mod sheet;
mod tally;

pub use hami::Dialect;
use sheet::Sheet;
pub use tally::{Tally, count_violations};

/// Content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics of a snapshot in Prometheus's text format. `restarts` has the parts of the monitor, and how often each was started
/// again. `tally` returns the tally of the container with a directory name.
#[must_use]
pub fn text(snapshot: &Snapshot, node: &str, dialect: Dialect, restarts: &[(&str, u64)], tally: impl Fn(&str) -> Tally) -> String {
    let mut sheet = Sheet::default();
    own::write(&mut sheet, snapshot, &tally);
    own::write_restarts(&mut sheet, restarts);
    hami::write(&mut sheet, snapshot, node, dialect);
    sheet.into_text()
}

#[cfg(test)]
mod tests;
