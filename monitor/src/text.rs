//! Text that tenants choose, for logs and terminals.

/// Ranges of Unicode's format characters and line separators (categories Cf, Zl and Zp, Unicode 16): they hide or reorder what surrounds them.
const FORMAT: [(u32, u32); 20] = [
    (0x00ad, 0x00ad),
    (0x0600, 0x0605),
    (0x061c, 0x061c),
    (0x06dd, 0x06dd),
    (0x070f, 0x070f),
    (0x0890, 0x0891),
    (0x08e2, 0x08e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff9, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0001, 0xe0001),
    (0xe0020, 0xe007f),
];

/// Returns the text with control and format characters replaced by question marks.
#[must_use]
pub fn printable(text: &str) -> String {
    let is_format = |letter: char| FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(letter)));
    // ASCII has control characters, but no format characters.
    let is_hidden = |letter: char| letter.is_control() || (!letter.is_ascii() && is_format(letter));
    text.chars().map(|letter| if is_hidden(letter) { '?' } else { letter }).collect()
}

/// Characters of a shortened ID, as many as Docker and Podman show.
pub const SHORT_ID: usize = 12;

/// Returns the first characters of an ID of 64 hexadecimal digits, which engines make. Other IDs were chosen by somebody, and stay whole.
#[must_use]
pub fn short_id(id: &str) -> &str {
    let is_made = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_made { &id[..SHORT_ID] } else { id }
}

/// Returns a container's name for display: its namespace, pod and name there, as far as known, else the engine's name, else the ID,
/// shortened. Control and format characters are replaced.
#[must_use]
pub fn display_name(in_pod: [&Option<String>; 3], given: Option<&str>, id: &str) -> String {
    let known: Vec<&str> = in_pod.into_iter().flatten().map(String::as_str).collect();
    printable(&if known.is_empty() { given.unwrap_or(short_id(id)).to_owned() } else { known.join("/") })
}

#[cfg(test)]
mod tests {
    use super::{printable, short_id};

    #[test]
    fn only_ids_that_engines_made_are_shortened() {
        let made = "0123456789abcdef".repeat(4);
        assert_eq!(short_id(&made), "0123456789ab");
        for id in ["training", &made[1..], &"x".repeat(64), ""] {
            assert_eq!(short_id(id), id);
        }
    }

    #[test]
    fn hidden_characters_are_replaced() {
        for (text, expected) in [
            ("web-0/app", "web-0/app"),
            ("naïve 名前", "naïve 名前"),
            ("a\x1b[2J\n\u{85}", "a?[2J??"),
            ("a\u{202e}b\u{2066}c\u{200b}d\u{feff}", "a?b?c?d?"),
            ("\u{e0041}\u{ad}\u{2028}\u{61c}", "????"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
