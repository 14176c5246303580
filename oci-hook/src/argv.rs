//! Reads just enough of an OCI runtime's command line: is a container being created, which, and from what bundle.
//!
//! runc, crun and youki differ. What has to be known of each flag is whether it takes a value, so that a container that is
//! called "create" confuses nobody.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Global flags with values: long names, and the short ones that stand for them.
const GLOBAL_VALUES: &[(&str, Option<u8>)] = &[
    ("log", Some(b'l')),
    ("log-format", None),
    ("log-level", None),
    ("root", Some(b'r')),
    ("criu", None),
    ("rootless", None),
    ("cgroup-manager", None),
];
/// Global flags without values.
const GLOBAL_SWITCHES: &[&str] = &["debug", "systemd-cgroup", "help", "version", "usage", "no-subreaper"];

/// Flags with values of `create`, `run` and `restore`.
const COMMAND_VALUES: &[(&str, Option<u8>)] = &[
    ("bundle", Some(b'b')),
    ("config", Some(b'f')),
    ("console-socket", None),
    ("pid-file", None),
    ("preserve-fds", None),
    ("pidfd-socket", None),
    ("image-path", None),
    ("work-path", None),
    ("parent-path", None),
    ("manage-cgroups-mode", None),
    ("empty-ns", None),
    ("lsm-profile", None),
    ("lsm-mount-context", None),
    ("criu", None),
];

/// Flags of a command that have it explain itself and do nothing else.
const HELP: &[&str] = &["help", "h", "usage", "?"];

/// All commands of the known runtimes: what follows an unknown global flag is its value unless it is one of these.
const COMMANDS: &[&str] = &[
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "h",
    "info",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
];

/// What the global flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Global {
    /// `--log`.
    pub log: Option<PathBuf>,
    /// `--log-format`.
    pub log_format: Option<String>,
    /// `--root`.
    pub root: Option<PathBuf>,
}

/// A container to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// The global flags.
    pub global: Global,
    /// The container's id; empty if it was left out.
    pub id: OsString,
    /// `--bundle`.
    pub bundle: Option<PathBuf>,
    /// crun's `--config`.
    pub config: Option<PathBuf>,
}

/// What the runtime is told to do, as far as that matters to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `create`, `run` or `restore`.
    Create(Creation),
    /// `delete`, with the container's id.
    Delete(OsString),
    /// Everything else.
    Other,
}

/// Reads the arguments after the program's name. `None`: no container is being created.
#[must_use]
pub fn creation(args: &[OsString]) -> Option<Creation> {
    match command(args) {
        Command::Create(creation) => Some(creation),
        _ => None,
    }
}

/// Reads the arguments after the program's name.
#[must_use]
pub fn command(args: &[OsString]) -> Command {
    read(args).unwrap_or(Command::Other)
}

fn read(args: &[OsString]) -> Option<Command> {
    let mut creation = Creation::default();
    let mut args = args.iter();
    let command = loop {
        let arg = args.next()?;
        match Flag::read(arg, GLOBAL_VALUES) {
            None => break arg,
            Some(flag) if flag.ends => break args.next()?,
            Some(flag) => {
                let value = match flag.value {
                    Some(value) => Some(value),
                    None if flag.takes_value => Some(args.next()?.clone()),
                    None => {
                        let known = GLOBAL_SWITCHES.contains(&flag.name.as_str()) || flag.short;
                        let next_is_command = args.clone().next().is_some_and(|next| COMMANDS.iter().any(|known| next == known));
                        if !known && !next_is_command {
                            args.next();
                        }
                        None
                    }
                };
                let Some(value) = value else { continue };
                match flag.name.as_str() {
                    "log" => creation.global.log = Some(value.into()),
                    "log-format" => creation.global.log_format = value.into_string().ok(),
                    "root" => creation.global.root = Some(value.into()),
                    _ => {}
                }
            }
        }
    };
    let deletes = command == "delete";
    if !deletes && !["create", "run", "restore"].iter().any(|creating| command == creating) {
        return None;
    }
    let values = if deletes { &[] } else { COMMAND_VALUES };
    let mut positional = Vec::new();
    while let Some(arg) = args.next() {
        let flag = match Flag::read(arg, values) {
            Some(flag) if flag.ends => {
                positional.extend(args.cloned());
                break;
            }
            Some(flag) => flag,
            None => {
                positional.push(arg.clone());
                continue;
            }
        };
        if HELP.contains(&flag.name.as_str()) && flag.value.is_none() {
            return None;
        }
        let value = if flag.takes_value && flag.value.is_none() { args.next().cloned() } else { flag.value };
        match flag.name.as_str() {
            "bundle" => creation.bundle = value.map(PathBuf::from),
            "config" => creation.config = value.map(PathBuf::from),
            _ => {}
        }
    }
    creation.id = positional.into_iter().next().unwrap_or_default();
    Some(if deletes { Command::Delete(creation.id) } else { Command::Create(creation) })
}

/// One flag as it was written.
struct Flag {
    /// Its long name, where it is known; without dashes.
    name: String,
    /// The value in the same argument.
    value: Option<OsString>,
    takes_value: bool,
    short: bool,
    /// It is `--`.
    ends: bool,
}

impl Flag {
    /// `None` if `arg` is no flag. runc also takes one dash before a long name, and getopt any beginning of one that is clear.
    fn read(arg: &OsStr, values: &[(&str, Option<u8>)]) -> Option<Self> {
        let bytes = arg.as_bytes();
        let dashes = bytes.iter().take_while(|&&byte| byte == b'-').count().min(2);
        let body = &bytes[dashes..];
        if dashes == 0 || (body.is_empty() && dashes == 1) {
            return None;
        }
        let (name, value) = match body.iter().position(|&byte| byte == b'=') {
            Some(at) => (&body[..at], Some(OsStr::from_bytes(&body[at + 1..]).to_owned())),
            None => (body, None),
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let flag = |name: &str, value, takes_value, short| Self { name: name.to_owned(), value, takes_value, short, ends: false };
        if dashes == 2 && body.is_empty() {
            return Some(Self { ends: true, ..flag("", None, false, false) });
        }
        if let Some((long, _)) = values.iter().find(|(long, _)| *long == name) {
            return Some(flag(long, value, true, false));
        }
        if dashes == 2 {
            let mut longer = values.iter().filter(|(long, _)| long.starts_with(&name));
            return Some(match (longer.next(), longer.next()) {
                (Some((long, _)), None) => flag(long, value, true, false),
                _ => flag(&name, value, false, false),
            });
        }
        // One dash: short flags, of which the first that takes a value has the rest of the argument for it.
        for (at, byte) in body.iter().enumerate() {
            if let Some((long, _)) = values.iter().find(|(_, short)| *short == Some(*byte)) {
                let rest = &body[at + 1..];
                let rest = rest.strip_prefix(b"=").unwrap_or(rest);
                let value = (!rest.is_empty()).then(|| OsStr::from_bytes(rest).to_owned());
                return Some(flag(long, value, true, true));
            }
        }
        Some(flag(&name, value, false, body.len() == 1))
    }
}

#[cfg(test)]
mod tests;
