//! containerd: a drop-in in `conf.d` next to the main file, which imports it.

use super::error::Error;
use super::options::{HANDLER, Options};
use super::{backup, managed};
use crate::file_change::{FileChange, read};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_containerd::{Handler, Source, Version, attach, detach, inspect, is_ours, patterns, render};

/// Returns the path of the drop-in for the main file `config`.
pub(crate) fn drop_in(config: &Path) -> PathBuf {
    config.with_file_name("conf.d").join("99-vgpu.toml")
}

/// Returns the changes that register vgpu.
pub(super) fn configure(options: &Options) -> Result<Vec<FileChange>, Error> {
    let path = drop_in(&options.config);
    let main = Source::new(&options.config, read(&options.config)?.unwrap_or_default());
    let before = registration(&options.config)?;
    let edited = attach(&main, &path, Version::for_program(&program_version()))?;
    let others: Vec<_> =
        load(&Source { text: edited.text.clone(), ..main.clone() })?.into_iter().filter(|file| file.path != path).collect();
    let handler = Handler { name: HANDLER, binary: &options.runtime, default: options.default || before.default };
    let text = render(edited.version, &others, handler)?;
    let is_edited = detach(&main, &path)?.is_some();
    // The drop-in is written before its import. It may contain a registry's password, so it is as secret as the main file.
    let mut changes = vec![managed::write(&path, text, is_ours)?.like(&options.config)];
    changes.extend(backup::edit(&options.config, edited.text, is_edited)?);
    Ok(changes)
}

/// Returns the changes that remove vgpu.
pub(super) fn undo(config: &Path) -> Result<Vec<FileChange>, Error> {
    let path = drop_in(config);
    let mut changes = Vec::new();
    if let Some(text) = read(config)?
        && let Some(cleaned) = detach(&Source::new(config, text), &path)?
    {
        let squeeze = |text: &str| text.split_whitespace().collect::<String>();
        changes = backup::restore(config, cleaned, |t| t.trim().is_empty(), |a, b| squeeze(a) == squeeze(b))?;
    }
    changes.push(managed::remove(&path, is_ours)?);
    Ok(changes)
}

/// Returns how vgpu is registered now.
pub(crate) fn registration(config: &Path) -> Result<vgpu_containerd::Registration, Error> {
    let path = drop_in(config);
    let Some(text) = read(config)? else { return Ok(Default::default()) };
    let loaded = load(&Source::new(config, text))?;
    Ok(inspect(&loaded, &path, read(&path)?.as_deref(), HANDLER)?)
}

/// Loads the main file and all its imports in containerd's order: breadth first, each file once.
fn load(main: &Source) -> Result<Vec<Source>, Error> {
    let mut loaded: Vec<Source> = Vec::new();
    let mut queue = VecDeque::from([main.clone()]);
    while let Some(file) = queue.pop_front() {
        if loaded.iter().any(|other| other.path == file.path) {
            continue;
        }
        for pattern in patterns(&file)? {
            let text = pattern.path.to_string_lossy();
            let found = if text.contains('*') {
                glob::glob(&text).map_or_else(|_| Vec::new(), |paths| paths.filter_map(Result::ok).collect())
            } else {
                vec![pattern.path.clone()]
            };
            for path in found {
                if let Some(text) = read(&path)? {
                    queue.push_back(Source { path, text });
                }
            }
        }
        loaded.push(file);
    }
    Ok(loaded)
}

/// Returns the output of `containerd --version`; empty if it cannot be run.
pub(crate) fn program_version() -> String {
    let output = Command::new("containerd").arg("--version").output();
    output.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}
