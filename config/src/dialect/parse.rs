//! Values that several dialects write in the same way.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::request::{Claim, GpuRequest};
use crate::setting::{Said, Setting};

const PRIORITIES: &str = "0 (high) or 1 (the default)";

/// Most GPUs an index can name.
const INDICES: u32 = vgpu_region::MAX_GPUS as u32;

/// Calls `put` for the variable `key` and for each `key_<i>`, with the part of `claim` that it speaks of.
pub(super) fn each_gpu(
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
pub(super) fn said<T>(by: Setting, parse: impl Fn(&str) -> Option<T>, accepted: &str) -> Result<Said<T>> {
    match parse(&by.value) {
        Some(value) => Ok(Said { value, by }),
        None => Err(by.refused(accepted)),
    }
}

/// A percentage where 0 and 100 and more mean that there is no limit.
pub(super) fn cores(by: Setting) -> Result<Option<Said<u32>>> {
    let value = said(by, crate::quantity::percent_or_none, "a whole number of percent; 0, 100 and more mean no limit")?;
    Ok(value.value.map(|cores| Said { value: cores, by: value.by }))
}

/// A switch, as the peers write it.
pub(super) fn switch(setting: &Setting) -> Result<bool> {
    match setting.value.as_str() {
        "true" | "TRUE" | "True" | "1" => Ok(true),
        "false" | "FALSE" | "False" | "0" => Ok(false),
        _ => Err(setting.refused("true, false, 1 or 0")),
    }
}

/// Reads a task priority.
pub(super) fn priority(setting: Setting) -> Result<Said<u32>> {
    said(setting, |text| ["0", "1"].iter().position(|&known| known == text).map(|value| value as u32), PRIORITIES)
}

/// An absolute path that fits into the limits page.
pub(super) fn path(text: &str) -> Option<String> {
    let plain = text.starts_with('/') && text.len() <= 255 && !text.chars().any(char::is_control);
    plain.then(|| text.to_owned())
}
