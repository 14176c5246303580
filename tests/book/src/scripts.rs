//! The texts in the monitor's web page and in the scripts of the packages.

use std::fs;

use crate::pages::root;

/// The web page's scripts.
const PAGE: &str = "monitor/web";
/// The scripts that packages run, and the tarball's installer.
const PACKAGE: [&str; 4] = ["packaging/scripts/postinst", "packaging/scripts/postrm", "packaging/scripts/prerm", "packaging/install.sh"];

/// Returns the string literals of the web page's JavaScript with their files, but for names of classes. `{}` stands for what is put in.
///
/// # Panics
/// A file cannot be read.
pub fn of_page() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(PAGE)).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let mut names: Vec<String> = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".js"));
    names.sort();
    names.iter().flat_map(|name| read(&format!("{PAGE}/{name}"), of_javascript)).collect()
}

/// Returns what the packages' scripts print by `echo`, with their files. `{}` stands for a variable.
///
/// # Panics
/// A file cannot be read.
pub fn of_package() -> Vec<(String, String)> {
    PACKAGE.iter().flat_map(|name| read(name, of_shell)).collect()
}

fn read(name: &str, literals: fn(&str) -> Vec<String>) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    literals(&text).into_iter().map(|literal| (name.to_owned(), literal.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// Returns the string literals of JavaScript. Literals in a template's `${...}` come before it.
fn of_javascript(text: &str) -> Vec<String> {
    let mut found = vec![];
    scan(&text.chars().collect::<Vec<_>>(), 0, '\0', &mut found);
    found
}

/// Adds the literals from `at` on up to `end`, an unmatched closing brace or the end of the text. Returns the place behind it.
fn scan(text: &[char], mut at: usize, end: char, found: &mut Vec<String>) -> usize {
    let mut depth = 0;
    while let Some(&c) = text.get(at) {
        let next = text.get(at + 1).copied().unwrap_or_default();
        match c {
            '/' if next == '/' => at = position(text, at, "\n"),
            '/' if next == '*' => at = position(text, at, "*/") + 2,
            '"' | '\'' | '`' => {
                let is_class = text[..at].iter().collect::<String>().ends_with("class: ");
                let mut nested = vec![];
                let (literal, behind) = literal(text, at + 1, c, &mut nested);
                found.append(&mut nested);
                found.extend(Some(literal).filter(|_| !is_class));
                at = behind;
                continue;
            }
            '{' => depth += 1,
            '}' if depth == 0 && end == '}' => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the literal that begins at `at` and ends with `quote`, and the place behind it.
fn literal(text: &[char], mut at: usize, quote: char, found: &mut Vec<String>) -> (String, usize) {
    let mut literal = String::new();
    while let Some(&c) = text.get(at).filter(|&&c| c != quote) {
        match c {
            '\\' => {
                literal.extend(text.get(at + 1));
                at += 2;
            }
            '$' if quote == '`' && text.get(at + 1) == Some(&'{') => {
                literal += "{}";
                at = scan(text, at + 2, '}', found);
            }
            c => {
                literal.push(c);
                at += 1;
            }
        }
    }
    (literal, at + 1)
}

/// Returns where `what` begins, from `at` on, or the end of the text.
fn position(text: &[char], at: usize, what: &str) -> usize {
    let what: Vec<char> = what.chars().collect();
    (at..text.len()).find(|&place| text[place..].starts_with(&what)).unwrap_or(text.len())
}

/// Returns the quoted texts that a shell's `echo` prints.
fn of_shell(text: &str) -> Vec<String> {
    let printed = text.split("echo \"").skip(1).map(|rest| {
        let mut printed = String::new();
        let mut chars = rest.chars().peekable();
        while let Some(c) = chars.next().filter(|&c| c != '"') {
            match c {
                '\\' => printed.extend(chars.next()),
                '$' => {
                    printed += "{}";
                    let is_long = chars.next_if_eq(&'{').is_some();
                    while chars.next_if(|&c| c.is_ascii_alphanumeric() || c == '_').is_some() {}
                    if is_long {
                        chars.by_ref().find(|&c| c == '}');
                    }
                }
                c => printed.push(c),
            }
        }
        printed
    });
    printed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_javascript_are_found() {
        let text = "// \"no\"\nel(\"p\", { class: \"note big\" }, `a ${x ? \"some one\" : `b ${y}`} c`); /* 'no' */ say('it\\'s \"')";
        assert_eq!(of_javascript(text), ["p", "some one", "b {}", "a {} c", "it's \""]);
    }

    #[test]
    fn what_a_shell_prints_is_found() {
        let text = "echo \"run \\\"vgpu\\\" for $who, ${what:-x} now\" >&2\n  echo \"two\"";
        assert_eq!(of_shell(text), ["run \"vgpu\" for {}, {} now", "two"]);
    }
}
