//! What is known, as Prometheus metrics: under HAMi's names with its labels and units, and under ours for what it lacks.

use prometheus::{Encoder, TextEncoder};

use crate::snapshot::Snapshot;

mod hami;
mod own;
mod sheet;
mod tally;

pub use hami::Dialect;
use sheet::Sheet;
pub use tally::Tally;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything at this moment, in Prometheus's text format. `tally` gives a container's tally, by its place.
///
/// # Errors
/// Two metrics contradict each other, which tests rule out.
pub fn text(snapshot: &Snapshot, node: &str, dialect: Dialect, tally: impl Fn(&str) -> Tally) -> prometheus::Result<String> {
    let mut sheet = Sheet::default();
    own::write(&mut sheet, snapshot, &tally)?;
    hami::write(&mut sheet, snapshot, node, dialect)?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&sheet.owners(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests;
