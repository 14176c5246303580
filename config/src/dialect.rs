//! The dialects in which limits are written. Each module reads one dialect and is independent of the others.
//!
//! Trust: the tenant, or an orchestrator on its behalf, writes all of it. Where two dialects limit the same quantity, the stricter one
//! wins, and the operator's policy applies last ([`crate::decide()`]). A scheduler's decision ([`scheduling`]) only counts where the
//! environment says nothing, because its entries cannot be assigned to containers reliably.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::devices::{Choice, VisibleDevices};
use crate::error::Result;
use crate::request::Request;
use crate::setting::Setting;

pub mod alnair;
pub mod annotations;
pub mod claims;
pub mod controller;
pub mod hami;
pub mod kai;
pub mod manager;
pub mod misspelt;
pub mod nvidia;
mod parse;
pub mod scheduling;
mod sources;

pub use sources::Sources;

/// Reads all dialects.
///
/// # Errors
/// The first value that its dialect does not document.
pub fn read(sources: &Sources<'_>) -> Result<Request> {
    let mut request = Request::default();
    nvidia::read(sources.env, &mut request);
    request.log_level = own_log_level(sources.env)?;
    let mut dialects = vec![
        hami::read(sources.env, &mut request)?,
        manager::read(sources.env, &mut request)?,
        controller::read(sources.env, &mut request)?,
        alnair::read(sources.env, sources.alnair_limits, &mut request)?,
    ];
    if sources.claims.is_empty() {
        dialects.push(kai::read(sources, &request)?);
    } else {
        dialects = vec![claims::read(sources.claims, &mut request)?];
    }
    dialects.retain(|dialect| !dialect.is_empty());
    if dialects.is_empty() && sources.claims.is_empty() {
        dialects.push(scheduling::read(sources.annotations, &request.visible)?);
    }
    dialects.push(annotations::read(sources, &mut request)?);
    if scheduling::has_decision(sources.annotations) && request.visible.devices != VisibleDevices::All {
        // The scheduler has applied the same annotations when it chose these GPUs.
        request.choice = Choice::default();
    }
    dialects.retain(|dialect| !dialect.is_empty());
    request.dialects = dialects;
    Ok(request)
}

/// Reads `VGPU_LOG`, which has precedence over the variables of other dialects.
fn own_log_level(env: &BTreeMap<String, String>) -> Result<Option<LogLevel>> {
    let Some(value) = env.get("VGPU_LOG") else { return Ok(None) };
    let level = LogLevel::named(value.as_bytes());
    level.map(Some).ok_or_else(|| Setting::environment("VGPU_LOG", value).refused("off, error, warn, info, debug, or 0 to 4"))
}

#[cfg(test)]
mod tests;
