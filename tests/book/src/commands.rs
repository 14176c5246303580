//! Reference of a command line, from clap's own data.

use clap::{Arg, Command};

use crate::markdown::{cell, table};

/// Returns the page of a program and its subcommands.
pub fn page(mut program: Command) -> String {
    program.build();
    let mut text = format!("# {}\n\n{}\n", program.get_name(), section(&program));
    for command in program.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        text += &format!("\n## {} {}\n\n{}\n", program.get_name(), command.get_name(), section(command));
    }
    text
}

/// Returns what a command does, its usage and its arguments.
fn section(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let paragraphs: Vec<String> = about.split("\n\n").map(|paragraph| sentence(&cell(paragraph))).collect();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    let aliases = if aliases.is_empty() { String::new() } else { format!("Also: `{}`.\n\n", aliases.join("`, `")) };
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()));
    let rows: Vec<Vec<String>> = shown.map(|arg| vec![name(arg), default(arg), meaning(arg)]).collect();
    let arguments = if rows.is_empty() { String::new() } else { table(&["argument", "default", "meaning"], rows) };
    format!("{}\n\n```text\n{usage}\n```\n\n{aliases}{arguments}", paragraphs.join("\n\n")).trim().to_owned()
}

/// Returns a text with a full stop.
fn sentence(text: &str) -> String {
    if text.ends_with(['.', ':']) { text.to_owned() } else { format!("{text}.") }
}

fn name(arg: &Arg) -> String {
    let values: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes_values = arg.get_action().takes_values();
    match (arg.get_long(), takes_values) {
        (Some(long), true) => format!("`--{long} {}`", values.join(" ")),
        (Some(long), false) => format!("`--{long}`"),
        (None, _) => format!("`{}`", values.join(" ")),
    }
}

fn default(arg: &Arg) -> String {
    let values: Vec<String> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    match values.join(",") {
        value if !arg.get_action().takes_values() || value.is_empty() => if arg.is_required_set() { "required" } else { "" }.to_owned(),
        value => format!("`{value}`"),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = sentence(&cell(&help));
    if let Some(variable) = arg.get_env() {
        text += &format!(" Variable: `{}`.", variable.to_string_lossy());
    }
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let describe = |value: &clap::builder::PossibleValue| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), cell(&help.to_string()).trim_end_matches('.')),
            None => format!("`{}`", value.get_name()),
        };
        text += &format!(" One of: {}.", values.iter().map(describe).collect::<Vec<_>>().join("; "));
    }
    text
}
