//! Parses an OCI runtime's command line as far as needed: the command, the container id and the bundle.
//!
//! runc, crun and youki differ. For each flag the parser has to know whether it takes a value, so that a container named "create" is not
//! mistaken for a command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::slice::Iter;

/// Global flags with values: long names and their short forms.
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

/// Flags of a command that only print its help.
const HELP: &[&str] = &["help", "h", "usage", "?"];

/// Arguments that ask for version or help of the runtime itself.
const ABOUT: [&str; 4] = ["--version", "-v", "--help", "-h"];

/// All commands of the known runtimes. An argument after an unknown global flag is its value unless it is one of these.
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

/// Global flags.
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
    /// Container id; empty if missing.
    pub id: OsString,
    /// `--bundle`.
    pub bundle: Option<PathBuf>,
    /// crun's `--config`.
    pub config: Option<PathBuf>,
}

/// The runtime's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `create`, `run` or `restore`.
    Create(Creation),
    /// `delete`, with the container id.
    Delete(OsString),
    /// No command, but `--version` or `--help`.
    About,
    /// Any other command.
    Other,
}

/// Parses the arguments after the program's name. `None` unless a container is created.
#[must_use]
pub fn creation(args: &[OsString]) -> Option<Creation> {
    match command(args) {
        Command::Create(creation) => Some(creation),
        _ => None,
    }
}

/// Parses the arguments after the program's name.
#[must_use]
pub fn command(args: &[OsString]) -> Command {
    if let [only] = args
        && ABOUT.iter().any(|flag| only == flag)
    {
        return Command::About;
    }
    parse(args).unwrap_or(Command::Other)
}

fn parse(args: &[OsString]) -> Option<Command> {
    let mut args = args.iter();
    let (global, command) = parse_global(&mut args)?;
    if command == "delete" {
        return Some(Command::Delete(parse_creation(args, &[])?.id));
    }
    if !["create", "run", "restore"].iter().any(|known| command == known) {
        return None;
    }
    Some(Command::Create(Creation { global, ..parse_creation(args, COMMAND_VALUES)? }))
}

/// Parses the global flags and the command's name. `None` without a command.
fn parse_global<'a>(args: &mut Iter<'a, OsString>) -> Option<(Global, &'a OsString)> {
    let mut global = Global::default();
    loop {
        let arg = args.next()?;
        let Some(flag) = Flag::parse(arg, GLOBAL_VALUES) else { return Some((global, arg)) };
        if flag.is_terminator {
            return Some((global, args.next()?));
        }
        let value = match flag.value {
            Some(value) => value,
            None if flag.takes_value => args.next()?.clone(),
            None => {
                let is_known = GLOBAL_SWITCHES.contains(&flag.name.as_str()) || flag.is_short;
                let is_followed_by_command = args.clone().next().is_some_and(|next| COMMANDS.iter().any(|known| next == known));
                if !is_known && !is_followed_by_command {
                    args.next();
                }
                continue;
            }
        };
        match flag.name.as_str() {
            "log" => global.log = Some(value.into()),
            "log-format" => global.log_format = value.into_string().ok(),
            "root" => global.root = Some(value.into()),
            _ => {}
        }
    }
}

/// Parses the arguments of a command whose flags with values are `values`. `None` if it only prints its help.
fn parse_creation(mut args: Iter<'_, OsString>, values: &[(&str, Option<u8>)]) -> Option<Creation> {
    let mut creation = Creation::default();
    let mut positional = Vec::new();
    while let Some(arg) = args.next() {
        let flag = match Flag::parse(arg, values) {
            Some(flag) if flag.is_terminator => {
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
    Some(creation)
}

/// One flag.
struct Flag {
    /// The long name if known, without dashes.
    name: String,
    /// The value in the same argument.
    value: Option<OsString>,
    takes_value: bool,
    is_short: bool,
    /// Whether this is `--`.
    is_terminator: bool,
}

impl Flag {
    /// Parses a flag. `None` if `arg` is not one. runc accepts one dash before a long name, and getopt any unambiguous prefix of one.
    fn parse(arg: &OsStr, values: &[(&str, Option<u8>)]) -> Option<Self> {
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
        let flag =
            |name: &str, value, takes_value, is_short| Self { name: name.to_owned(), value, takes_value, is_short, is_terminator: false };
        if dashes == 2 && body.is_empty() {
            return Some(Self { is_terminator: true, ..flag("", None, false, false) });
        }
        if let Some((long, _)) = values.iter().find(|(long, _)| *long == name) {
            return Some(flag(long, value, true, false));
        }
        if dashes == 2 {
            let mut matches = values.iter().filter(|(long, _)| long.starts_with(&name));
            return Some(match (matches.next(), matches.next()) {
                (Some((long, _)), None) => flag(long, value, true, false),
                _ => flag(&name, value, false, false),
            });
        }
        // One dash: short flags. The first one that takes a value takes the rest of the argument.
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
