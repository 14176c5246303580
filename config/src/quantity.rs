//! Bytes and percentages, and how users write them. Each dialect has its own units; undocumented forms are refused, never guessed.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::spelling::did_you_mean;

/// One KiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// One TiB in bytes.
pub const TIB: u64 = 1 << 40;

/// An amount of memory in bytes, at least 1. A limit of 0 bytes cannot be expressed, because 0 means no limit in the limits page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(NonZeroU64);

impl Bytes {
    /// The smallest amount, under which nothing can be allocated.
    const MIN: Self = Self(NonZeroU64::MIN);

    /// Returns the amount, or `None` for 0.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        match NonZeroU64::new(bytes) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns `numerator / denominator` of this amount, rounded down, but at least 1 byte and at most `u64::MAX`. `denominator` must not
    /// be 0.
    #[must_use]
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        Self::new(part(self.get(), numerator, denominator)).unwrap_or(Self::MIN)
    }

    /// Returns the sum, at most `u64::MAX` bytes.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.get()))
    }
}

/// Returns `numerator / denominator` of an amount, rounded down, at most `u64::MAX`. `denominator` must not be 0.
#[must_use]
pub fn part(bytes: u64, numerator: u64, denominator: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Whole MiB, rounded down.
impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} MiB", self.get() / MIB)
    }
}

/// A percentage from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u32);

impl Percent {
    /// All of it.
    pub const MAX: Self = Self(100);

    /// Returns the percentage, or `None` if `value` is not from 1 to 100.
    #[must_use]
    pub fn new(value: u32) -> Option<Self> {
        (1..=100).contains(&value).then_some(Self(value))
    }

    /// Returns the number from 1 to 100.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// Returns this percentage of `total`, rounded down, but at least 1 byte.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        total.scaled(self.0.into(), 100)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} percent", self.0)
    }
}

/// The units of one dialect.
#[derive(Debug)]
pub struct Units {
    /// Bytes in one unit of a bare number; `None` where a unit is required.
    pub bare: Option<u64>,
    /// Suffixes and their bytes. One-letter suffixes are case-insensitive, longer ones are exact.
    pub suffixes: &'static [(&'static str, u64)],
    /// The accepted form in words, for error messages.
    pub expected: &'static str,
}

/// vgpu's annotations: a bare number is MiB, as in HAMi's resources.
pub const ANNOTATION: Units = Units {
    bare: Some(MIB),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB), ("Ki", KIB), ("Mi", MIB), ("Gi", GIB), ("Ti", TIB)],
    expected: "a positive integer (MiB) or a quantity such as 4Gi (units k, m, g, t, Ki, Mi, Gi, Ti)",
};

/// HAMi-core's environment: a bare number is bytes.
pub const HAMI: Units = Units {
    bare: Some(1),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB)],
    expected: "a positive integer (bytes) or a quantity such as 1024m (units k, m, g)",
};

/// vgpu-manager's and vgpu-controller's environment: a bare number is bytes.
pub const MANAGER: Units = Units {
    bare: Some(1),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB)],
    expected: "a positive integer (bytes) or a quantity such as 4096m (units k, m, g, t)",
};

/// Alnair's limits file: bytes.
pub const ALNAIR: Units = Units { bare: Some(1), suffixes: &[], expected: "a positive integer (bytes)" };

/// The policy file: the unit is required.
pub const POLICY: Units =
    Units { bare: None, suffixes: ANNOTATION.suffixes, expected: "a quantity such as 4Gi (units k, m, g, t, Ki, Mi, Gi, Ti)" };

impl Units {
    /// Parses `text` as an amount. `None` for anything but the documented form: a sign, a fraction, a leading zero, zero itself,
    /// white space, another unit, or more than 64 bits.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<Bytes> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(end);
        let unit = if suffix.is_empty() {
            self.bare?
        } else {
            let is_suffix = |name: &str| name == suffix || (name.len() == 1 && name.eq_ignore_ascii_case(suffix));
            self.suffixes.iter().find(|(name, _)| is_suffix(name))?.1
        };
        Bytes::new(number(digits)?.checked_mul(unit)?)
    }

    /// Returns what is expected instead of `text`: the accepted form, and what was probably meant by a unit such as `GiB` or a fraction.
    #[must_use]
    pub fn advice(&self, text: &str) -> String {
        advice(self.expected, self.meant(text))
    }

    /// Returns the accepted form of an amount that has the units of other programs, or a fraction.
    fn meant(&self, text: &str) -> Option<String> {
        const LETTERS: [char; 4] = ['k', 'm', 'g', 't'];
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let suffix = text[end..].trim().to_ascii_lowercase();
        let nth = LETTERS.iter().position(|&letter| suffix.starts_with(letter))?;
        if !["", "b", "i", "ib"].contains(&&suffix[1..]) {
            return None;
        }
        let (number, nth) = match text[..end].split_once('.') {
            None => (text[..end].to_owned(), nth),
            Some((whole, fraction)) => (in_next_lower_unit(whole, fraction)?.to_string(), nth.checked_sub(1)?),
        };
        let letter = LETTERS[nth];
        let forms = [format!("{number}{}i", letter.to_ascii_uppercase()), format!("{number}{letter}")];
        forms.into_iter().find(|form| self.parse(form).is_some())
    }
}

/// The accepted form of a percentage in words, for error messages.
pub const PERCENT: &str = "an integer from 1 to 100 (percent)";

/// Returns what is expected instead of `text`, a percentage: `expected`, and what was probably meant.
#[must_use]
pub fn percent_advice(text: &str, expected: &str) -> String {
    let meant = || {
        let text = text.trim();
        if let Some(number) = text.strip_suffix('%') {
            return percent(number.trim());
        }
        // A part of one, in hundredths.
        let hundredths = text.strip_prefix("0.").filter(|digits| digits.len() <= 2)?;
        percent(format!("{hundredths:0<2}").trim_start_matches('0'))
    };
    advice(expected, meant().map(|percent| percent.to_string()))
}

fn advice(expected: &str, meant: Option<String>) -> String {
    meant.map_or_else(|| expected.to_owned(), |meant| format!("{expected}: {}", did_you_mean(&meant)))
}

/// Returns 1024 times the number `whole.fraction`. `None` unless that is an integer.
fn in_next_lower_unit(whole: &str, fraction: &str) -> Option<u64> {
    let one = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = fraction.parse::<u64>().ok()?.checked_mul(1024)?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(1024)?;
    if parts.is_multiple_of(one) { whole.checked_add(parts / one) } else { None }
}

/// Parses a positive integer of decimal digits, without sign or leading zero.
#[must_use]
pub fn number(digits: &str) -> Option<u64> {
    if digits.starts_with('0') || digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Parses a percentage from 1 to 100.
#[must_use]
pub fn percent(text: &str) -> Option<u32> {
    number(text).filter(|&value| value <= 100).map(|value| value as u32)
}

/// Parses a percentage as in the environment of HAMi and its relatives: 0 and 100 or more mean "no limit", which is `Some(None)`.
#[must_use]
pub fn percent_or_unlimited(text: &str) -> Option<Option<Percent>> {
    match text {
        "0" => Some(None),
        _ => number(text).map(|value| u32::try_from(value).ok().filter(|&value| value < 100).and_then(Percent::new)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let cases: &[(&str, &Units, &str, Option<u64>)] = &[
            ("a bare number in an annotation is MiB", &ANNOTATION, "3000", Some(3000 * MIB)),
            ("lower-case m is MiB, never milli", &ANNOTATION, "3000m", Some(3000 * MIB)),
            ("so is upper-case M", &ANNOTATION, "3000M", Some(3000 * MIB)),
            ("Kubernetes' binary unit", &ANNOTATION, "4Gi", Some(4 * GIB)),
            ("HAMi's g", &ANNOTATION, "4g", Some(4 * GIB)),
            ("long units are case-sensitive", &ANNOTATION, "4gi", None),
            ("an unknown unit", &ANNOTATION, "10Q", None),
            ("a negative number is not unlimited", &ANNOTATION, "-1", None),
            ("a plus sign", &ANNOTATION, "+1", None),
            ("zero", &ANNOTATION, "0", None),
            ("zero with a unit", &ANNOTATION, "0g", None),
            ("a fraction is not truncated", &ANNOTATION, "1.5g", None),
            ("a leading zero is not octal", &ANNOTATION, "010m", None),
            ("an empty string", &ANNOTATION, "", None),
            ("only a unit", &ANNOTATION, "g", None),
            ("a newline", &ANNOTATION, "1024\n", None),
            ("a leading space", &ANNOTATION, " 1024", None),
            ("a space before the unit", &ANNOTATION, "4 Gi", None),
            ("hexadecimal", &ANNOTATION, "0x10", None),
            ("an exponent", &ANNOTATION, "1e3", None),
            ("digits of another script", &ANNOTATION, "١٠٢٤", None),
            ("GiB is not a unit", &ANNOTATION, "4GiB", None),
            ("more than 64 bits", &ANNOTATION, "99999999999999999999", None),
            ("the product does not wrap", &ANNOTATION, "17592186044416", None),
            ("the largest product", &ANNOTATION, "17592186044415", Some(17_592_186_044_415 * MIB)),
            ("HAMi-core: bytes", &HAMI, "1073741824", Some(GIB)),
            ("HAMi-core: kibibytes", &HAMI, "1048576k", Some(GIB)),
            ("HAMi-core: mebibytes", &HAMI, "1024m", Some(GIB)),
            ("HAMi-core: gibibytes", &HAMI, "1g", Some(GIB)),
            ("HAMi-core reads 10 bytes here; vgpu refuses", &HAMI, "10Gi", None),
            ("HAMi-core has no t", &HAMI, "1t", None),
            ("HAMi-core reads 1 GiB here; vgpu refuses", &HAMI, "1.5g", None),
            ("HAMi-core reads 8 MiB here; vgpu refuses", &HAMI, "010m", None),
            ("HAMi-core reads no limit here; vgpu refuses", &HAMI, "-1", None),
            ("vgpu-manager: tebibytes", &MANAGER, "1t", Some(TIB)),
            ("Alnair: bytes only", &ALNAIR, "1g", None),
            ("Alnair: bytes", &ALNAIR, "1073741824", Some(GIB)),
            ("policy: with a unit", &POLICY, "4Gi", Some(4 * GIB)),
            ("policy: the unit is required", &POLICY, "4096", None),
        ];
        for (description, units, text, expected) in cases {
            assert_eq!(units.parse(text).map(Bytes::get), *expected, "{description}: {text:?}");
        }
    }

    #[test]
    fn percentages() {
        let cases = [
            ("the minimum", "1", Some(1)),
            ("the maximum", "100", Some(100)),
            ("above the maximum", "101", None),
            ("zero", "0", None),
            ("a sign", "-5", None),
            ("a percent sign", "30%", None),
            ("a fraction", "30.5", None),
        ];
        for (description, text, expected) in cases {
            assert_eq!(percent(text), expected, "{description}: {text:?}");
        }
        let cases = [
            ("a limit", "30", Some(Percent::new(30))),
            ("zero is unlimited", "0", Some(None)),
            ("a hundred is unlimited", "100", Some(None)),
            ("more than a hundred is unlimited", "400", Some(None)),
            ("more than 32 bits is unlimited", "4294967297", Some(None)),
            ("a sign", "-1", None),
            ("a word", "half", None),
        ];
        for (description, text, expected) in cases {
            assert_eq!(percent_or_unlimited(text), expected, "{description}: {text:?}");
        }
    }

    #[test]
    fn what_was_meant_is_advised() {
        for (units, text, meant) in [
            (&ANNOTATION, "4GiB", Some("4Gi")),
            (&ANNOTATION, "4GB", Some("4Gi")),
            (&ANNOTATION, "4 gb", Some("4Gi")),
            (&ANNOTATION, "4gi", Some("4Gi")),
            (&ANNOTATION, "1.5g", Some("1536Mi")),
            (&ANNOTATION, "1.51g", None),
            (&ANNOTATION, "4Q", None),
            (&ANNOTATION, "0GB", None),
            (&ANNOTATION, "-1", None),
            (&ANNOTATION, "٤GB", None),
            (&HAMI, "10Gi", Some("10g")),
            (&HAMI, "1t", None),
            (&POLICY, "4096MB", Some("4096Mi")),
            (&POLICY, "4096", None),
        ] {
            assert_eq!(units.meant(text).as_deref(), meant, "{text}");
        }
        assert!(ANNOTATION.advice("4GB").ends_with("Gi, Ti): did you mean 4Gi?"));
        for (text, meant) in [("30%", "30"), ("30 %", "30"), ("0.3", "30"), ("101%", ""), ("-1%", ""), ("half", ""), ("0.333", "")] {
            let expected = if meant.is_empty() { PERCENT.to_owned() } else { format!("{PERCENT}: did you mean {meant}?") };
            assert_eq!(percent_advice(text, PERCENT), expected, "{text}");
        }
    }

    #[test]
    fn scaling_neither_wraps_nor_rounds_up() {
        let bytes = |bytes| Bytes::new(bytes).unwrap();
        assert_eq!(Percent::MAX.of(bytes(u64::MAX)), bytes(u64::MAX));
        assert_eq!(Percent::new(50).unwrap().of(bytes(3)), bytes(1));
        assert_eq!(bytes(u64::MAX).scaled(2, 1), bytes(u64::MAX));
        assert_eq!(Percent::new(1).unwrap().of(bytes(99)), bytes(1), "an amount of 0 would be no limit");
    }
}
