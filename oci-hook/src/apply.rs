//! Puts edits into a specification, and a specification into its file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Map, Value};

use crate::edits::{Edits, STAGE};
use crate::error::{Error, Result};
use crate::path::plain;
use crate::spec::Spec;

/// The specification with the edits in it. Doing it twice is the same as doing it once.
///
/// # Errors
/// The specification has something else where lists have to be.
pub fn to_spec(spec: Spec, edits: &Edits) -> Result<Spec> {
    let mut spec = spec.0;
    if !edits.places.is_empty() {
        // What another put there, such as HAMi's device plugin.
        list(&mut spec, &["mounts"])?.retain(|mount| {
            let place = mount.get("destination").and_then(Value::as_str).map(plain);
            place.is_none_or(|place| edits.places.iter().all(|ours| place != Path::new(ours)))
        });
    }
    if !edits.env.is_empty() {
        let env = list(&mut spec, &["process", "env"])?;
        for (key, text) in &edits.env {
            env.retain(|entry| entry.as_str().and_then(|entry| entry.split_once('=')).is_none_or(|(name, _)| name != key));
            env.push(Value::String(format!("{key}={text}")));
        }
    }
    for hook in &edits.hooks {
        let hooks = list(&mut spec, &["hooks", STAGE])?;
        let name = hook.pointer("/args/0");
        hooks.retain(|other| other.pointer("/args/0") != name);
        hooks.push(hook.clone());
    }
    Ok(Spec(spec))
}

/// The list at `path`, made if it is absent or null.
fn list<'a>(spec: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>> {
    let wrong = || Error::refused("config.json", path.join("."), "a list there, or nothing");
    let mut at = spec;
    for key in path {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        at = at.as_object_mut().ok_or_else(wrong)?.entry(*key).or_insert(Value::Null);
    }
    if at.is_null() {
        *at = Value::Array(Vec::new());
    }
    at.as_array_mut().ok_or_else(wrong)
}

/// Puts `new` in the place of `path`. The two are exchanged where the file system can do that: an ordinary rename over a file has ext4
/// write the new one to the disk at once, which takes milliseconds.
fn exchange(new: &Path, path: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {
            // The exchange is made; a copy of the old text that stays harms nobody.
            let _ = fs::remove_file(new);
            Ok(())
        }
        Err(_) => fs::rename(new, path),
    }
}

/// Replaces a file by rename, keeping its owner and mode: whoever reads it sees the old text or the new one.
///
/// It is not synced to the disk: after a crash of the machine neither the container exists nor, in `/run`, what the new text points
/// at, and orchestrators write the bundle anew. On a disk, waiting would cost more than all the rest of what is done here.
///
/// # Errors
/// The folder cannot be written; the file is as it was.
pub fn replace_file(path: &Path, text: &[u8]) -> Result<()> {
    let was = fs::metadata(path).map_err(Error::io("look at", path))?;
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".vgpu-{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text)?;
        let now = file.metadata()?;
        if (now.uid(), now.gid()) != (was.uid(), was.gid()) {
            std::os::unix::fs::fchown(&file, Some(was.uid()), Some(was.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(was.mode() & 0o7777))?;
        exchange(&temporary, path)
    };
    write().map_err(|why| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path)(why)
    })
}

#[cfg(test)]
mod tests;
