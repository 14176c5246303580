//! Forms of values that several dialects share.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::quantity::{Bytes, Percent, Units, number, percent_advice, percent_or_unlimited};
use crate::request::{GpuRequest, GpuRequests, Request};
use crate::setting::{Setting, Sourced};

/// Number of GPUs that an index can name.
const MAX_INDICES: u32 = vgpu_region::MAX_GPUS as u32;

/// Calls `read` for the variable `key` and each `key_<i>`, with the request that the variable applies to.
pub(super) fn for_each_gpu(
    env: &BTreeMap<String, String>,
    key: &str,
    requests: &mut GpuRequests,
    mut read: impl FnMut(&mut GpuRequest, Setting) -> Result<()>,
) -> Result<()> {
    if let Some(value) = env.get(key) {
        read(&mut requests.all, Setting::environment(key, value))?;
    }
    let prefix = format!("{key}_");
    for (name, value) in env.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix)) {
        let setting = Setting::environment(name, value);
        let index = index(&name[prefix.len()..])
            .ok_or_else(|| setting.refused(format!("the variable {key} or {key}_<i> with i from 0 to {}", MAX_INDICES - 1)))?;
        read(requests.by_index.entry(index).or_default(), setting)?;
    }
    Ok(())
}

fn index(text: &str) -> Option<u32> {
    let is_canonical = text == "0" || number(text).is_some();
    text.parse().ok().filter(|&index| is_canonical && index < MAX_INDICES)
}

/// Parses the value of a setting, or refuses it with `expected` in the message.
pub(super) fn parse<T>(setting: Setting, parse: impl Fn(&str) -> Option<T>, expected: &str) -> Result<Sourced<T>> {
    match parse(&setting.value) {
        Some(value) => Ok(Sourced { value, setting }),
        None => Err(setting.refused(expected)),
    }
}

/// Parses an amount of memory in the dialect's units.
pub(super) fn memory(setting: Setting, units: &Units) -> Result<Sourced<Bytes>> {
    match units.parse(&setting.value) {
        Some(value) => Ok(Sourced { value, setting }),
        None => Err(setting.refused(units.advice(&setting.value))),
    }
}

/// Parses a percentage of GPU time where 0 and 100 or more mean no limit. More than 100 is hardly meant, which `request` keeps.
pub(super) fn cores(setting: Setting, request: &mut Request) -> Result<Option<Sourced<Percent>>> {
    let expected = "a non-negative integer (percent; 0 and 100 or more mean no limit)";
    match percent_or_unlimited(&setting.value) {
        Some(None) => {
            if setting.value != "0" && setting.value != "100" {
                request.above_all_time.push(setting);
            }
            Ok(None)
        }
        Some(value) => Ok(value.map(|value| Sourced { value, setting })),
        None => Err(setting.refused(percent_advice(&setting.value, expected))),
    }
}

/// Parses a switch.
pub(super) fn switch(setting: &Setting) -> Result<bool> {
    match setting.value.as_str() {
        "true" | "TRUE" | "True" | "1" => Ok(true),
        "false" | "FALSE" | "False" | "0" => Ok(false),
        _ => Err(setting.refused("true, false, 1 or 0")),
    }
}

/// Parses a task priority.
pub(super) fn priority(setting: Setting) -> Result<Sourced<u32>> {
    let value = |text: &str| ["0", "1"].iter().position(|&known| known == text).map(|value| value as u32);
    parse(setting, value, "0 (high) or 1 (the default)")
}

/// Parses an absolute path that fits into the limits page.
pub(super) fn path(text: &str) -> Option<String> {
    let is_valid = text.starts_with('/') && text.len() <= 255 && !text.chars().any(char::is_control);
    is_valid.then(|| text.to_owned())
}
