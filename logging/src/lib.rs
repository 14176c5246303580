//! Log output of vgpu's host daemons: `vgpu monitor`, `vgpu-dra` and `vgpu-webhook`.
//!
//! The daemons log through `tracing`. [`init`] installs the process-wide subscriber that writes the events as text or JSON to stderr, or
//! sends them to journald. Nothing is ever written to stdout, which belongs to the programs' own output.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry};

/// Names that a level may have, from the quietest on.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Level where neither the option nor the environment sets one.
const DEFAULT_LEVEL: &str = "info";
/// Prefix of our fields in the journal: the field `container` becomes `VGPU_CONTAINER`.
const JOURNAL_PREFIX: &str = "VGPU";

/// Log options of a daemon's command line, to be flattened into it.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Format of the log: text or JSON on stderr, or journald's own protocol
    #[arg(long = "log-format", value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Least severe level to log (off, error, warn, info, debug, trace), or levels by target such as info,vgpu_monitor=debug.
    /// Without it, RUST_LOG applies, and info where that is not set
    #[arg(long = "log-level", env = "VGPU_LOG", value_name = "LEVEL")]
    pub level: Option<String>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One line of text for each event, on stderr. Coloured only on a terminal, unless NO_COLOR is set.
    #[default]
    Text,
    /// One JSON object an event, one a line, on stderr.
    Json,
    /// Journald's native protocol over its socket, with each field as a field of the journal.
    Journald,
}

/// Reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The level is neither a level nor a list of directives.
    #[error("log level: {0:?}: expected off, error, warn, info, debug, trace, or directives such as info,vgpu_monitor=debug")]
    Level(String),
    /// Journald's socket does not answer.
    #[error("log format: \"journald\": expected a running journald: {0}")]
    Journald(#[source] io::Error),
    /// Another subscriber is installed already.
    #[error("log: {0}")]
    Installed(#[from] TryInitError),
}

/// Installs the subscriber that the options ask for, for the whole process. Records of the `log` crate go the same way.
///
/// # Errors
/// The level is malformed, journald does not answer, or the process has a subscriber already.
pub fn init(options: &Options) -> Result<(), Error> {
    let filter = filter(options.level.as_deref(), std::env::var("RUST_LOG").ok().as_deref())?;
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match options.format {
        Format::Text => text(filter, io::stderr, colour).try_init()?,
        Format::Json => json(filter, io::stderr).try_init()?,
        Format::Journald => {
            let layer = tracing_journald::layer().map_err(Error::Journald)?.with_field_prefix(Some(JOURNAL_PREFIX.to_owned()));
            Registry::default().with(layer.with_filter(filter)).try_init()?;
        }
    }
    Ok(())
}

/// Returns the filter of the first of these that is not empty; [`DEFAULT_LEVEL`] without any.
fn filter(option: Option<&str>, rust_log: Option<&str>) -> Result<Targets, Error> {
    let given = [option, rust_log].into_iter().flatten().find(|value| !value.trim().is_empty());
    let directives = given.unwrap_or(DEFAULT_LEVEL);
    // `Targets` takes a word that is no level for a target whose every event is logged, so a misspelt level would silence the rest.
    let is_sound = |directive: &str| directive.contains('=') || LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive));
    let parts: Vec<&str> = directives.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let filter = parts.join(",").parse().ok().filter(|_| parts.iter().all(|part| is_sound(part)));
    filter.ok_or_else(|| Error::Level(directives.to_owned()))
}

fn text<W>(filter: Targets, writer: W, colour: bool) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A closed stderr must not end a daemon, which reporting failed writes on stderr would do.
    let layer = fmt::layer().with_writer(writer).with_ansi(colour).log_internal_errors(false);
    Registry::default().with(layer.with_filter(filter))
}

fn json<W>(filter: Targets, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = fmt::layer().json().flatten_event(true).with_writer(writer).with_ansi(false).log_internal_errors(false);
    Registry::default().with(layer.with_filter(filter))
}

#[cfg(test)]
mod tests;
