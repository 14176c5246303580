//! The ways in which limits are written down. Each module reads one dialect and knows nothing of the others.
//!
//! Who is believed: all of it was said by the tenant or by an orchestrator in the tenant's name, so where two dialects speak of
//! the same thing the stricter wins, and the operator's policy has the last word ([`crate::decide()`]). A scheduler's decision
//! ([`scheduling`]) only counts where the environment says nothing, because its entries cannot be told apart safely.

use std::collections::BTreeMap;

use vgpu_region::limits::LogLevel;

use crate::error::{Result, Setting};
use crate::request::{Claim, GpuRequest, Request, Said};

pub mod alnair;
pub mod annotations;
pub mod claims;
pub mod controller;
pub mod hami;
pub mod kai;
pub mod manager;
pub mod nvidia;
pub mod scheduling;

/// Everything that is known of a container when its limits are read.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The OCI annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The environment of the container's process; of a repeated variable the last.
    pub env: &'a BTreeMap<String, String>,
    /// The container's name in its pod.
    pub container: Option<&'a str>,
    /// The contents of Alnair's limits file, where the container has one.
    pub alnair_limits: Option<&'a str>,
    /// The shares of Kubernetes' claims that the container has.
    pub claims: &'a [claims::File],
}

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

/// Most GPUs an index can name.
const INDICES: u32 = vgpu_region::MAX_GPUS as u32;

/// Calls `put` for the variable `key` and for each `key_<i>`, with the part of `claim` that it speaks of.
fn each_gpu(
    env: &BTreeMap<String, String>,
    key: &str,
    claim: &mut Claim,
    mut put: impl FnMut(&mut GpuRequest, Setting) -> Result<()>,
) -> Result<()> {
    if let Some(value) = env.get(key) {
        put(&mut claim.all, Setting::environment(key, value))?;
    }
    let prefix = format!("{key}_");
    for (name, value) in env.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix)) {
        let setting = Setting::environment(name, value);
        let index =
            index(&name[prefix.len()..]).ok_or_else(|| setting.refused(format!("{key} or {key}_<i> with i from 0 to {}", INDICES - 1)))?;
        put(claim.by_index.entry(index).or_default(), setting)?;
    }
    Ok(())
}

fn index(text: &str) -> Option<u32> {
    let canonical = text == "0" || crate::quantity::number(text).is_some();
    text.parse().ok().filter(|&index| canonical && index < INDICES)
}

/// Reads a setting's value, or refuses it.
fn said<T>(by: Setting, parse: impl Fn(&str) -> Option<T>, accepted: &str) -> Result<Said<T>> {
    match parse(&by.value) {
        Some(value) => Ok(Said { value, by }),
        None => Err(by.refused(accepted)),
    }
}

/// A percentage where 0 and 100 and more mean that there is no limit.
fn cores(by: Setting) -> Result<Option<Said<u32>>> {
    let value = said(by, crate::quantity::percent_or_none, "a whole number of percent; 0, 100 and more mean no limit")?;
    Ok(value.value.map(|cores| Said { value: cores, by: value.by }))
}

/// A switch, as the peers write it.
fn switch(setting: &Setting) -> Result<bool> {
    match setting.value.as_str() {
        "true" | "TRUE" | "True" | "1" => Ok(true),
        "false" | "FALSE" | "False" | "0" => Ok(false),
        _ => Err(setting.refused("true, false, 1 or 0")),
    }
}

#[cfg(test)]
mod tests;
