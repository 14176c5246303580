//! The messages in the sources of the shipped crates.
//!
//! A message is a string literal of several words outside of test code. Not messages: documentation, attributes other than `#[error]`, and
//! what the lists `INTERNAL_MACROS` and `INTERNAL_METHODS` name.

use std::collections::BTreeSet;

use vgpu_architecture::workspace::Package;

use crate::literals::{Literals, of_package, shipped};

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

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The crate and the file below its `src`.
    pub file: String,
    /// The literal on one line, with placeholders.
    pub text: String,
    /// The texts between the placeholders.
    parts: Vec<String>,
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
        Self { file, parts: fixed_parts(&text), text }
    }

    /// Returns whether `line` has the texts between the placeholders, in their order.
    pub fn stands_in(&self, line: &str) -> bool {
        let mut rest = line;
        self.parts.iter().all(|part| match rest.find(part.as_str()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
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
}
