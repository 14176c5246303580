//! The known key that was probably meant by an unknown one: the one function for annotations, variables, the policy file and the
//! parameters of claims.

use strsim::damerau_levenshtein;

/// Most typos in any key. At least one is allowed.
const MAX_TYPOS: usize = 3;
/// Length of a field's name divided by the most typos in it.
const FIELD_TYPOS: usize = 4;

/// Returns the key whose name is nearest to `name`, if at most one in `one_in` characters differs, or if only its words are in another
/// order. Case and separators count for nothing. `known` has keys with their names.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = (&'a str, &'a str)>, one_in: usize) -> Option<&'a str> {
    let name = letters(name);
    let sorted_name = sorted(&name);
    let near = known.filter_map(|(key, known)| {
        let known = letters(known);
        let allowed = (known.len() / one_in).clamp(1, MAX_TYPOS);
        // At least as many characters differ as the lengths do, and a tenant's key may be long.
        let is_near = known.len().abs_diff(name.len()) <= allowed;
        let typos = is_near.then(|| if sorted(&known) == sorted_name { 1 } else { damerau_levenshtein(&name, &known) })?;
        (typos <= allowed).then_some((typos, key))
    });
    near.min().map(|(_, key)| key)
}

/// Returns the end of a message that refuses a key which is almost `meant`.
pub fn did_you_mean(meant: &str) -> String {
    format!("did you mean {meant}?")
}

/// Returns a shorter form of serde's message about an unknown field that is almost a known one. `None` for other messages.
#[must_use]
pub fn unknown_field(message: &str) -> Option<String> {
    let mut names = message.strip_prefix("unknown field `")?.split('`').step_by(2);
    let unknown = names.next()?;
    let meant = nearest(unknown, names.map(|known| (known, known)), FIELD_TYPOS)?;
    Some(format!("unknown field `{unknown}`: {}", did_you_mean(meant)))
}

/// Returns the letters and digits of a name, in lower case.
pub(crate) fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn sorted(letters: &str) -> Vec<u8> {
    let mut letters = letters.as_bytes().to_vec();
    letters.sort_unstable();
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_suggested_whatever_their_case_and_order() {
        let message = |field: &str| format!("unknown field `{field}`, expected one of `apiVersion`, `kind`, `coresSoft`, `priority`");
        for (field, expected) in [
            ("coressoft", Some("unknown field `coressoft`: did you mean coresSoft?")),
            ("cores_soft", Some("unknown field `cores_soft`: did you mean coresSoft?")),
            ("softCores", Some("unknown field `softCores`: did you mean coresSoft?")),
            ("Prioritty", Some("unknown field `Prioritty`: did you mean priority?")),
            ("memory", None),
        ] {
            assert_eq!(unknown_field(&message(field)).as_deref(), expected, "{field}");
        }
        assert_eq!(unknown_field("missing field `kind`"), None);
    }
}
