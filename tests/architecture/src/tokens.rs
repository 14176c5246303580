//! Paths in the token streams of macro calls and `macro_rules!` bodies, which are not parsed as Rust.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Names found in a token stream.
#[derive(Default)]
pub struct Found {
    /// Paths of two or more segments. `$crate` is given as `crate`.
    pub paths: Vec<Vec<String>>,
    /// Names of macros called by name alone.
    pub macros: Vec<String>,
}

/// Collects the paths in `stream` and in all its groups.
pub fn scan(stream: TokenStream, found: &mut Found) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token {
            TokenTree::Group(group) => scan(group.stream(), found),
            TokenTree::Ident(_) if starts_path(&tokens, index) => {
                index = path(&tokens, index, found);
                continue;
            }
            _ => {}
        }
        index += 1;
    }
}

/// Returns whether the identifier at `index` is the first segment of a path: not a field, not a later segment, not a `$variable`.
fn starts_path(tokens: &[TokenTree], index: usize) -> bool {
    let Some(TokenTree::Punct(before)) = index.checked_sub(1).and_then(|before| tokens.get(before)) else { return true };
    match before.as_char() {
        '.' | '\'' => index > 1 && is_punct(&tokens[index - 2], '.'),
        ':' => !(index > 1 && is_punct(&tokens[index - 2], ':')),
        '$' => is_ident(&tokens[index], "crate"),
        _ => true,
    }
}

/// Reads the path that starts at `index` and returns the index after it.
fn path(tokens: &[TokenTree], mut index: usize, found: &mut Found) -> usize {
    let mut segments = vec![tokens[index].to_string()];
    index += 1;
    while is_separator(tokens, index) {
        match tokens.get(index + 2) {
            Some(TokenTree::Ident(segment)) => {
                segments.push(segment.to_string());
                index += 3;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                for_each_of_group(&segments, group.stream(), found);
                return index + 3;
            }
            _ => break,
        }
    }
    if segments.len() > 1 {
        found.paths.push(segments);
    } else if tokens.get(index).is_some_and(|token| is_punct(token, '!')) {
        found.macros.extend(segments);
    }
    index
}

/// Collects the paths of a `use` group: `prefix::{a, b::c}`.
fn for_each_of_group(prefix: &[String], group: TokenStream, found: &mut Found) {
    let mut inner = Found::default();
    let tokens: Vec<TokenTree> = group.into_iter().collect();
    for member in tokens.split(|token| is_punct(token, ',')) {
        match member.first() {
            Some(TokenTree::Ident(_)) => {
                let paths = inner.paths.len();
                path(member, 0, &mut inner);
                if inner.paths.len() == paths {
                    inner.paths.push(vec![member[0].to_string()]);
                }
            }
            Some(_) => inner.paths.push(vec![]),
            None => {}
        }
    }
    found.paths.extend(inner.paths.into_iter().map(|path| [prefix, &path].concat()));
}

fn is_separator(tokens: &[TokenTree], index: usize) -> bool {
    [index, index + 1].into_iter().all(|index| tokens.get(index).is_some_and(|token| is_punct(token, ':')))
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}
