//! Applies edits to a specification, and writes the specification to its file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Map, Value};

use crate::edits::{Edits, STAGE};
use crate::error::{Error, Result};
use crate::path::normalize;
use crate::process::Process;
use crate::seccomp;
use crate::spec::Spec;

/// Returns the specification with the edits applied. Applying them again changes nothing.
///
/// # Errors
/// The specification has something else where a list belongs.
pub fn to_spec(spec: Spec, edits: &Edits) -> Result<Spec> {
    let Spec { json: mut spec, engine } = spec;
    if !edits.destinations.is_empty() {
        // Remove the mounts of other programs, such as HAMi's device plugin.
        list(&mut spec, &["mounts"])?.retain(|mount| {
            let destination = mount.get("destination").and_then(Value::as_str).map(|path| normalize(Path::new(path)));
            destination.is_none_or(|destination| edits.destinations.iter().all(|ours| destination != Path::new(ours)))
        });
    }
    if !edits.env.is_empty() {
        let env = list(&mut spec, &["process", "env"])?;
        for (key, value) in &edits.env {
            env.retain(|entry| entry.as_str().and_then(|entry| entry.split_once('=')).is_none_or(|(name, _)| name != key));
            env.push(Value::String(format!("{key}={value}")));
        }
    }
    for hook in &edits.hooks {
        let hook = serde_json::to_value(hook).map_err(|why| Error::Other(format!("cannot add the hook: {why}")))?;
        let hooks = list(&mut spec, &["hooks", STAGE])?;
        let name = hook.pointer("/args/0");
        hooks.retain(|other| other.pointer("/args/0") != name);
        hooks.push(hook);
    }
    if edits.denies_user_namespaces {
        seccomp::deny_user_namespaces(&mut spec)?;
    }
    Ok(Spec { json: spec, engine })
}

/// Returns the list at `path`, created if it is absent or null.
fn list<'a>(spec: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>> {
    let wrong_type = || Error::refused("config.json", path.join("."), "a list");
    let mut value = spec;
    for key in path {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        value = value.as_object_mut().ok_or_else(wrong_type)?.entry(*key).or_insert(Value::Null);
    }
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().ok_or_else(wrong_type)
}

/// Replaces `path` by `new`. The two are exchanged where the file system supports that: on an ordinary rename over a file, ext4 writes
/// the new one to the disk at once, which takes milliseconds.
fn exchange(new: &Path, path: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {
            // The exchange has succeeded; a remaining copy of the old text is harmless.
            let _ = fs::remove_file(new);
            Ok(())
        }
        Err(_) => fs::rename(new, path),
    }
}

/// Returns the name of the temporary files beside `path`, without the PID of the process that writes one.
fn temporary_prefix(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".vgpu-");
    name
}

/// Removes the temporary files beside `path` that killed processes have left. What cannot be removed stays; it does no harm.
pub fn remove_temporary_files(path: &Path) {
    let prefix = temporary_prefix(path);
    let entries = path.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let pid =
            name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes()).and_then(|pid| std::str::from_utf8(pid).ok()?.parse().ok());
        if pid.is_some_and(|pid| pid == std::process::id() || Process::with_pid(pid).is_none()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Replaces a file atomically, keeping its owner and mode.
///
/// The file is not synced: after a crash of the machine the container does not exist either, nor do files in `/run` that the new text
/// refers to, and orchestrators write the bundle again. Syncing to a disk would take longer than the rest of this program.
///
/// # Errors
/// The directory cannot be written; the file is unchanged.
pub fn replace_file(path: &Path, text: &[u8]) -> Result<()> {
    let old = fs::metadata(path).map_err(Error::io("stat", path))?;
    remove_temporary_files(path);
    let mut name = temporary_prefix(path);
    name.push(std::process::id().to_string());
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text)?;
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
        exchange(&temporary, path)
    };
    write().map_err(|why| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path)(why)
    })
}

#[cfg(test)]
mod tests;
