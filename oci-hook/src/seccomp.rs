//! System call filters that keep processes from creating user namespaces.
//!
//! In a user namespace of its own, a process has CAP_SYS_ADMIN for a mount namespace of its own, where it can mount over the list of the
//! loader or leave the container's root. Docker's and containerd's default filters refuse that, those of CRI-O and Podman do not, and
//! Kubernetes' default is no filter.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::spec::Spec;

/// The flag `CLONE_NEWUSER`.
const NEWUSER: u64 = 0x1000_0000;
/// System calls with the flag in their first argument.
const BY_FLAG: [&str; 2] = ["clone", "unshare"];
/// The system call whose flags are in memory, where a filter cannot read them. Callers use `clone` if the kernel seems not to have it.
const BY_POINTER: &str = "clone3";
/// `EPERM`.
const EPERM: u32 = 1;
/// `ENOSYS`.
const ENOSYS: u32 = 38;
/// Actions that end a call. All others let it happen, or leave it to somebody else.
const DENYING: [&str; 5] = ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP"];

/// Returns whether processes of the container may create user namespaces, or that cannot be ruled out.
#[must_use]
pub fn allows_user_namespaces(spec: &Spec) -> bool {
    let Some(profile) = spec.json.pointer("/linux/seccomp").and_then(Value::as_object) else { return true };
    !(BY_FLAG.iter().all(|name| denies(profile, name)) && denies(profile, BY_POINTER))
}

/// Changes the specification so that no process of the container can create a user namespace. All other calls stay as they are.
///
/// # Errors
/// The specification has something else where its filter belongs.
pub fn deny_user_namespaces(spec: &mut Value) -> Result<()> {
    let wrong_type = || Error::refused("config.json", "linux.seccomp", "an object with a list of syscalls");
    let linux = spec.as_object_mut().ok_or_else(wrong_type)?.entry("linux").or_insert_with(|| json!({}));
    let seccomp = linux.as_object_mut().ok_or_else(wrong_type)?.entry("seccomp").or_insert(Value::Null);
    if seccomp.is_null() {
        *seccomp = json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": architectures() });
    }
    let profile = seccomp.as_object_mut().ok_or_else(wrong_type)?;
    for name in BY_FLAG {
        if !denies(profile, name) {
            restrict_permits(profile, name).ok_or_else(wrong_type)?;
            if !is_default_denying(profile) {
                let rule = json!({ "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [masked(NEWUSER)] });
                rules_mut(profile).ok_or_else(wrong_type)?.push(rule);
            }
        }
    }
    if !denies(profile, BY_POINTER) {
        restrict_permits(profile, BY_POINTER).ok_or_else(wrong_type)?;
        let rule = json!({ "names": [BY_POINTER], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS });
        rules_mut(profile).ok_or_else(wrong_type)?.push(rule);
    }
    Ok(())
}

/// Returns the architectures of the machine's programs. A filter ends the calls of all others.
fn architectures() -> Value {
    if cfg!(target_arch = "x86_64") {
        json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"])
    } else {
        json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"])
    }
}

/// Returns the condition that the flag of a call in its first argument is as in `flags`.
fn masked(flags: u64) -> Value {
    json!({ "index": 0, "value": NEWUSER, "valueTwo": flags, "op": "SCMP_CMP_MASKED_EQ" })
}

/// Returns the rules of a profile, or `None` if there is something else instead of a list.
fn rules_mut(profile: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    let rules = profile.entry("syscalls").or_insert(Value::Null);
    if rules.is_null() {
        *rules = json!([]);
    }
    rules.as_array_mut()
}

/// Removes the call from all rules that may let it create a user namespace. What such a rule did with the call otherwise, be it to log it or
/// to leave it to somebody else, it goes on to do; under conditions of its own, the call is denied.
fn restrict_permits(profile: &mut Map<String, Value>, name: &str) -> Option<()> {
    let (default, is_default_denying) = (profile.get("defaultAction").cloned(), is_default_denying(profile));
    let (rules, mut kept) = (rules_mut(profile)?, Vec::new());
    for rule in rules.iter_mut().filter(|rule| names(rule, name) && !is_denying(rule.get("action")) && may_match(rule, name)) {
        // `clone3` gets a rule that denies it altogether, and without a rule the default does the same.
        if name != BY_POINTER && rule.get("action") != default.as_ref() {
            let mut own = rule.as_object().cloned().unwrap_or_default();
            own.insert("names".to_owned(), json!([name]));
            if args(rule).next().is_none() {
                own.insert("args".to_owned(), json!([masked(0)]));
                kept.push(Value::Object(own));
            } else if !is_default_denying {
                own.extend([("action".to_owned(), json!("SCMP_ACT_ERRNO")), ("errnoRet".to_owned(), json!(EPERM))]);
                kept.push(Value::Object(own));
            }
        }
        let listed = rule.get_mut("names").and_then(Value::as_array_mut);
        listed.into_iter().for_each(|names| names.retain(|listed| listed != name));
    }
    rules.retain(|rule| rule.get("names").and_then(Value::as_array).is_none_or(|names| !names.is_empty()));
    rules.extend(kept);
    Some(())
}

/// Returns whether the profile certainly ends this call if it would create a user namespace.
fn denies(profile: &Map<String, Value>, name: &str) -> bool {
    let rules = || profile.get("syscalls").and_then(Value::as_array).into_iter().flatten().filter(|rule| names(rule, name));
    let is_permitted = rules().any(|rule| !is_denying(rule.get("action")) && may_match(rule, name));
    let is_denied = || rules().any(|rule| is_denying(rule.get("action")) && must_match(rule, name));
    !is_permitted && (is_default_denying(profile) || is_denied())
}

fn is_default_denying(profile: &Map<String, Value>) -> bool {
    is_denying(profile.get("defaultAction"))
}

fn is_denying(action: Option<&Value>) -> bool {
    action.and_then(Value::as_str).is_some_and(|action| DENYING.contains(&action))
}

fn names(rule: &Value, name: &str) -> bool {
    rule.get("names").and_then(Value::as_array).is_some_and(|names| names.iter().any(|listed| listed == name))
}

fn args(rule: &Value) -> impl Iterator<Item = &Value> {
    rule.get("args").and_then(Value::as_array).into_iter().flatten()
}

/// Returns the numbers of a masked comparison, `(argument & mask) == value`.
fn mask(arg: &Value) -> Option<(u64, u64)> {
    let number = |key| arg.get(key).map_or(Some(0), Value::as_u64);
    (arg.get("op")? == "SCMP_CMP_MASKED_EQ").then_some(())?;
    Some((number("value")?, number("valueTwo")?))
}

/// Returns whether a rule may apply to a call that creates a user namespace.
fn may_match(rule: &Value, name: &str) -> bool {
    let index = |arg: &Value| arg.get("index").map_or(Some(0), Value::as_u64);
    let excludes =
        |arg: &Value| index(arg) == Some(0) && mask(arg).is_some_and(|(mask, value)| mask & NEWUSER != 0 && value & NEWUSER == 0);
    // If several conditions are on one argument, runc takes all of the rule's conditions as alternatives.
    let indices: BTreeSet<Option<u64>> = args(rule).map(index).collect();
    let are_alternatives = indices.len() < args(rule).count();
    name == BY_POINTER || if are_alternatives { !args(rule).all(excludes) } else { !args(rule).any(excludes) }
}

/// Returns whether a rule applies to every call that creates a user namespace.
fn must_match(rule: &Value, name: &str) -> bool {
    let mut args = args(rule);
    match (args.next(), args.next()) {
        (None, _) => true,
        (Some(arg), None) if name != BY_POINTER => {
            arg.get("index").is_some_and(|index| index == 0) && mask(arg) == Some((NEWUSER, NEWUSER))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
