//! The messages in the sources of the shipped crates, of the monitor's web page and of the package's scripts.
//!
//! A message is a string literal of several words outside of test code. Not messages: documentation, attributes other than `#[error]`, and
//! what the lists `INTERNAL_MACROS` and `INTERNAL_METHODS` name.
//!
//! A message stands in a text of the book if it is the whole text, or whole clauses of it: errors are put together of several messages
//! (`KEY: "VALUE": expected ...: did you mean ...?`).

use std::collections::BTreeSet;

use vgpu_architecture::workspace::Package;

use crate::literals::{Literals, of_package, shipped};
use crate::scripts;

/// Macros whose literals no user sees: assertions, the log's levels info, debug and trace, and machine code.
const INTERNAL_MACROS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "unreachable",
    "info",
    "debug",
    "trace",
    "asm",
    "global_asm",
    "naked_asm",
];
/// Methods whose literals no user sees.
const INTERNAL_METHODS: &[&str] = &["expect"];

/// What comes before a clause of a text, besides its beginning: punctuation, and words that errors put before what was done or expected.
const BEFORE: [&str; 10] = [": ", "; ", ", ", " (", " \"", "expected ", "cannot ", "did you mean ", "-> ", "· "];
/// What comes behind one, besides its end: punctuation, and what stands for a name or a graph.
const BEHIND: [&str; 12] = [":", ";", ",", " (", ")", "\"", " `", " ->", " ·", " PATH", " KEY", " ▁"];
/// What messages that are put together begin or end with.
const JOINTS: [char; 9] = [' ', ',', ';', ':', '(', ')', '"', '`', '·'];

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The crate and the file below its `src`.
    pub file: String,
    /// The literal on one line, with placeholders.
    pub text: String,
    /// The texts between the placeholders.
    parts: Vec<String>,
    /// Whether it begins with a placeholder.
    begins_open: bool,
    /// Whether it ends with a placeholder.
    ends_open: bool,
}

/// Returns the messages of the shipped crates.
///
/// # Panics
/// A source file is not valid Rust.
pub fn of_shipped(packages: &[Package]) -> BTreeSet<Message> {
    let mut messages = BTreeSet::new();
    for package in shipped(packages) {
        for (file, literals) in of_package(package, Literals::without(INTERNAL_MACROS, INTERNAL_METHODS)) {
            let texts = literals.into_iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
            messages.extend(texts.filter(|text| is_message(text)).map(|text| Message::new(format!("{}/{file}", package.name), text)));
        }
    }
    messages
}

/// Returns the messages of the monitor's web page and of the package's scripts.
///
/// # Panics
/// A file cannot be read.
pub fn of_scripts() -> BTreeSet<Message> {
    let literals = scripts::of_page().into_iter().chain(scripts::of_package());
    literals.filter(|(_, text)| is_message(text)).map(|(file, text)| Message::new(file, text)).collect()
}

/// Returns whether a literal has several words, one of them of its own. Placeholders count as words.
fn is_message(text: &str) -> bool {
    text.contains(' ') && fixed_parts(text).iter().any(|part| has_words(part))
}

/// Returns whether a text has a word in small letters.
pub fn has_words(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| word.len() > 2 && word.chars().all(|c| c.is_ascii_lowercase()))
}

/// Splits a format string into the texts between its placeholders.
fn fixed_parts(text: &str) -> Vec<String> {
    let mut parts = vec![];
    let mut part = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.peek() == Some(&c) => part.extend(chars.next()),
            '{' => {
                chars.by_ref().find(|&end| end == '}');
                parts.push(std::mem::take(&mut part));
            }
            c => part.push(c),
        }
    }
    parts.push(part);
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

impl Message {
    /// Returns the message of a literal.
    fn new(file: String, text: String) -> Self {
        let (begins_open, ends_open) = (text.starts_with('{') && !text.starts_with("{{"), text.ends_with('}') && !text.ends_with("}}"));
        let mut parts = fixed_parts(&text);
        let trim = |part: Option<&mut String>, trimmed: fn(&str) -> &str| {
            if let Some(part) = part {
                *part = trimmed(part).to_owned();
            }
        };
        trim(parts.first_mut().filter(|_| !begins_open), |part| part.trim_start_matches(JOINTS));
        trim(parts.last_mut().filter(|_| !ends_open), |part| part.trim_end_matches(JOINTS));
        // A joint alone holds nothing.
        let begins_open = begins_open || parts.first().is_some_and(String::is_empty);
        let ends_open = ends_open || parts.last().is_some_and(String::is_empty);
        Self { file, parts: parts.into_iter().filter(|part| !part.is_empty()).collect(), text, begins_open, ends_open }
    }

    /// Returns whether a text of the book is this message, or has it as whole clauses.
    pub fn stands_in(&self, text: &str) -> bool {
        let mut rest = text;
        let has_parts = self.parts.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        });
        has_parts && clauses(text).any(|clause| self.is(clause))
    }

    /// Returns whether a clause is the message, with anything in the places of its placeholders.
    fn is(&self, clause: &str) -> bool {
        let mut parts = self.parts.as_slice();
        let mut rest = clause.trim_matches(JOINTS);
        if let Some((first, others)) = parts.split_first().filter(|_| !self.begins_open) {
            let Some(after) = rest.strip_prefix(first.as_str()) else { return false };
            if others.is_empty() && !self.ends_open {
                return after.is_empty();
            }
            (parts, rest) = (others, after);
        }
        if let Some((last, others)) = parts.split_last().filter(|_| !self.ends_open) {
            let Some(before) = rest.strip_suffix(last.as_str()) else { return false };
            (parts, rest) = (others, before);
        }
        parts.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

/// Returns the sequences of clauses of a text. A word in capitals at its beginning stands for what differs, and is a clause, too.
fn clauses(text: &str) -> impl Iterator<Item = &str> {
    let places = |joints: &[&str], is_before: bool| -> Vec<usize> {
        let found =
            joints.iter().flat_map(|joint| text.match_indices(joint).map(move |(at, _)| if is_before { at + joint.len() } else { at }));
        found.collect()
    };
    let mut begins = places(&BEFORE, true);
    begins.push(0);
    begins.extend(
        text.split_once(' ')
            .filter(|(word, _)| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
            .map(|(word, _)| word.len() + 1),
    );
    let mut ends = places(&BEHIND, false);
    ends.push(text.len());
    begins.into_iter().flat_map(move |begin| ends.clone().into_iter().filter(move |end| begin < *end).map(move |end| &text[begin..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_names() {
        for text in ["cannot {action} {}: {source}", "{}: expected a string", "no GPU matches", "unknown field `{unknown}`"] {
            assert!(is_message(text), "{text}");
        }
        for text in ["cuMemAlloc", "{}: {why}", "GPU {index}", "/run/vgpu", "CAP_SYS_ADMIN", "{} {}"] {
            assert!(!is_message(text), "{text}");
        }
    }

    #[test]
    fn placeholders_stand_for_anything() {
        assert_eq!(fixed_parts("cannot {action} {}: {{x}} {source:?}"), ["cannot", ": {x}"]);
        let stands_in = |message: &str, line| Message::new(String::new(), message.to_owned()).stands_in(line);
        assert!(stands_in("cannot {action} {}: {source}", "cannot open /etc/x: No such file"));
        assert!(!stands_in("{}: expected a string", "expected a string: PATH"));
    }

    #[test]
    fn a_message_is_a_whole_text_or_whole_clauses_of_it() {
        let stands_in = |message: &str, text| Message::new(String::new(), message.to_owned()).stands_in(text);
        for (message, text) in [
            ("an integer from 1 to {}", "KEY: \"VALUE\": expected an integer from 1 to 100: did you mean 30?"),
            (": did you mean {}?", "KEY: \"VALUE\": expected an integer from 1 to 100: did you mean 30?"),
            ("is owned by user {}: expected root", "PATH is owned by user N: expected root"),
            (", first {} ago", "refused N, first TIME ago"),
            ("limits changed", "limits changed"),
        ] {
            assert!(stands_in(message, text), "{message} in {text}");
        }
        for (message, text) in [
            ("a table", "PATH: expected a table of names"),
            ("limits changed", "vgpu_limit_changes_total counts how often limits changed and when"),
            ("is owned by user {}", "the file of PATH is owned by user N"),
            ("expected a list", "unexpected a list"),
        ] {
            assert!(!stands_in(message, text), "{message} in {text}");
        }
    }
}
