//! containerd: a drop-in in `conf.d` beside the main file, and one `imports` entry in it.

use super::error::Error;
use super::options::{HANDLER, Options};
use super::{backup, managed};
use crate::file_change::{FileChange, read};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_containerd::{Handler, Source, Version, attach, detach, inspect, is_ours, patterns, render};

/// Where our drop-in for the main file `config` lies.
pub(crate) fn drop_in(config: &Path) -> PathBuf {
    config.with_file_name("conf.d").join("99-vgpu.toml")
}

pub(super) fn configure(options: &Options) -> Result<Vec<FileChange>, Error> {
    let path = drop_in(&options.config);
    let main = Source::new(&options.config, read(&options.config)?.unwrap_or_default());
    let before = registration(&options.config)?;
    let edited = attach(&main, &path, Version::for_program(&program_version()))?;
    let others: Vec<_> =
        load(&Source { text: edited.text.clone(), ..main.clone() })?.into_iter().filter(|file| file.path != path).collect();
    let handler = Handler { name: HANDLER, binary: &options.runtime, default: options.default || before.default };
    let text = render(edited.version, &others, handler)?;
    let touched = detach(&main, &path)?.is_some();
    // The drop-in first: an import of it would otherwise be there before it is. Its section may hold a registry's password.
    let mut changes = vec![managed::write(&path, text, is_ours)?.like(&options.config)];
    changes.extend(backup::keep(&options.config, edited.text, touched)?);
    Ok(changes)
}

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

/// How vgpu is registered now.
pub(crate) fn registration(config: &Path) -> Result<vgpu_containerd::Registration, Error> {
    let path = drop_in(config);
    let Some(text) = read(config)? else { return Ok(Default::default()) };
    let loaded = load(&Source::new(config, text))?;
    Ok(inspect(&loaded, &path, read(&path)?.as_deref(), HANDLER)?)
}

/// The main file and all that it imports, in containerd's order: breadth first, each file once.
fn load(main: &Source) -> Result<Vec<Source>, Error> {
    let mut out: Vec<Source> = Vec::new();
    let mut waiting = VecDeque::from([main.clone()]);
    while let Some(file) = waiting.pop_front() {
        if out.iter().any(|seen| seen.path == file.path) {
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
                    waiting.push_back(Source { path, text });
                }
            }
        }
        out.push(file);
    }
    Ok(out)
}

/// What `containerd --version` says; empty where it cannot be run.
pub(crate) fn program_version() -> String {
    let output = Command::new("containerd").arg("--version").output();
    output.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}
