//! The ways in which limits are written down. Each module reads one dialect and knows nothing of the others.
//!
//! Who is believed: all of it was said by the tenant or by an orchestrator in the tenant's name, so where two dialects speak of
//! the same thing the stricter wins, and the operator's policy has the last word ([`crate::decide()`]). A scheduler's decision
//! ([`scheduling`]) only counts where the environment says nothing, because its entries cannot be told apart safely.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

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
pub mod nvidia;
mod parse;
pub mod scheduling;
mod sources;

pub use sources::Sources;

/// Reads all dialects.
///
/// # Errors
/// The first value that is not as its dialect documents it.
pub fn read(sources: &Sources<'_>) -> Result<Request> {
    let mut request = Request::default();
    nvidia::read(sources.env, &mut request);
    request.log_level = own_log_level(sources.env)?;
    let mut from_env = vec![
        hami::read(sources.env, &mut request)?,
        manager::read(sources.env, &mut request)?,
        controller::read(sources.env, &mut request)?,
        alnair::read(sources.env, sources.alnair_limits, &mut request)?,
    ];
    if sources.claims.is_empty() {
        from_env.push(kai::read(sources, &request)?);
    } else {
        from_env = vec![claims::read(sources.claims, &mut request)?];
    }
    from_env.retain(|claim| !claim.is_empty());
    if from_env.is_empty() && sources.claims.is_empty() {
        from_env.push(scheduling::read(sources.annotations, &request.visible)?);
    }
    from_env.push(annotations::read(sources, &mut request)?);
    if scheduling::decided(sources.annotations) && request.visible.given != crate::devices::Given::All {
        // Which GPUs these are was the scheduler's choice, by the same annotations.
        request.choice = crate::devices::Choice::default();
    }
    request.claims = from_env;
    request.claims.retain(|claim| !claim.is_empty());
    Ok(request)
}

/// `VGPU_LOG`, which goes before the peers' variables.
fn own_log_level(env: &BTreeMap<String, String>) -> Result<Option<LogLevel>> {
    let Some(value) = env.get("VGPU_LOG") else { return Ok(None) };
    let level = LogLevel::named(value.as_bytes());
    level.map(Some).ok_or_else(|| Setting::environment("VGPU_LOG", value).refused("off, error, warn, info, debug, or 0 to 4"))
}

#[cfg(test)]
mod tests;
