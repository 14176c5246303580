//! Numbers as users write them. Each dialect has its own units; nothing undocumented is guessed at.

/// One KiB, MiB, GiB, TiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// One TiB in bytes.
pub const TIB: u64 = 1 << 40;

/// The units of one dialect.
#[derive(Debug)]
pub struct Units {
    /// What a bare number counts, in bytes; `None` where a unit must be given.
    pub bare: Option<u64>,
    /// Suffixes and what they stand for. One-letter suffixes are good in either case, longer ones as written.
    pub suffixes: &'static [(&'static str, u64)],
    /// The same in words, for error messages.
    pub accepted: &'static str,
}

/// vgpu's annotations: a bare number is MiB, as in HAMi's resources.
pub const ANNOTATION: Units = Units {
    bare: Some(MIB),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB), ("Ki", KIB), ("Mi", MIB), ("Gi", GIB), ("Ti", TIB)],
    accepted: "a whole number above 0, of MiB or with one of the units k, m, g, t, Ki, Mi, Gi, Ti, such as 3000, 3000m, 4Gi",
};

/// HAMi-core's environment: a bare number is bytes.
pub const HAMI: Units = Units {
    bare: Some(1),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB)],
    accepted: "a whole number above 0, of bytes or with one of the units k, m, g, such as 1g, 1024m, 1048576k, 1073741824",
};

/// vgpu-manager's and vgpu-controller's environment: a bare number is bytes.
pub const MANAGER: Units = Units {
    bare: Some(1),
    suffixes: &[("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB)],
    accepted: "a whole number above 0, of bytes or with one of the units k, m, g, t, such as 4g, 4096m",
};

/// Alnair's file: bytes.
pub const ALNAIR: Units = Units { bare: Some(1), suffixes: &[], accepted: "a whole number of bytes above 0" };

/// The policy file: the unit must be said.
pub const POLICY: Units = Units {
    bare: None,
    suffixes: ANNOTATION.suffixes,
    accepted: "a whole number above 0 with one of the units k, m, g, t, Ki, Mi, Gi, Ti, such as 4Gi",
};

impl Units {
    /// Reads `text` as an amount in bytes. `None` for anything that is not exactly as documented: a sign, a fraction, a leading
    /// zero, zero itself, blanks, another unit, or more than 64 bits.
    #[must_use]
    pub fn parse(&self, text: &str) -> Option<u64> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(end);
        let unit = if suffix.is_empty() {
            self.bare?
        } else {
            let same = |name: &str| name == suffix || (name.len() == 1 && name.eq_ignore_ascii_case(suffix));
            self.suffixes.iter().find(|(name, _)| same(name))?.1
        };
        number(digits)?.checked_mul(unit)
    }
}

/// A whole number above zero in decimal digits, without sign or leading zero.
#[must_use]
pub fn number(digits: &str) -> Option<u64> {
    if digits.starts_with('0') || digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// 1 to 100.
#[must_use]
pub fn percent(text: &str) -> Option<u32> {
    number(text).filter(|&value| value <= 100).map(|value| value as u32)
}

/// A percentage as the peers' environments have it: 0 and everything from 100 up mean "no limit", which is `Some(None)`.
#[must_use]
pub fn percent_or_none(text: &str) -> Option<Option<u32>> {
    match text {
        "0" => Some(None),
        _ => number(text).map(|value| (value < 100).then_some(value as u32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let cases: &[(&str, &Units, &str, Option<u64>)] = &[
            ("a bare number in an annotation is MiB", &ANNOTATION, "3000", Some(3000 * MIB)),
            ("small m is MiB, never milli", &ANNOTATION, "3000m", Some(3000 * MIB)),
            ("capital M the same", &ANNOTATION, "3000M", Some(3000 * MIB)),
            ("Kubernetes' binary unit", &ANNOTATION, "4Gi", Some(4 * GIB)),
            ("HAMi's g", &ANNOTATION, "4g", Some(4 * GIB)),
            ("long units are exact", &ANNOTATION, "4gi", None),
            ("an unknown unit", &ANNOTATION, "10Q", None),
            ("a negative number is no unlimited", &ANNOTATION, "-1", None),
            ("a plus sign", &ANNOTATION, "+1", None),
            ("zero", &ANNOTATION, "0", None),
            ("zero with a unit", &ANNOTATION, "0g", None),
            ("a fraction is not cut off", &ANNOTATION, "1.5g", None),
            ("a leading zero is not octal", &ANNOTATION, "010m", None),
            ("nothing", &ANNOTATION, "", None),
            ("only a unit", &ANNOTATION, "g", None),
            ("a newline", &ANNOTATION, "1024\n", None),
            ("a blank before", &ANNOTATION, " 1024", None),
            ("a blank between", &ANNOTATION, "4 Gi", None),
            ("hexadecimal", &ANNOTATION, "0x10", None),
            ("exponents", &ANNOTATION, "1e3", None),
            ("digits of another script", &ANNOTATION, "١٠٢٤", None),
            ("bytes as such", &ANNOTATION, "4GiB", None),
            ("64 bits are not enough", &ANNOTATION, "99999999999999999999", None),
            ("the product does not wrap", &ANNOTATION, "17592186044416", None),
            ("the largest product", &ANNOTATION, "17592186044415", Some(17_592_186_044_415 * MIB)),
            ("HAMi-core: bytes", &HAMI, "1073741824", Some(GIB)),
            ("HAMi-core: kibibytes", &HAMI, "1048576k", Some(GIB)),
            ("HAMi-core: mebibytes", &HAMI, "1024m", Some(GIB)),
            ("HAMi-core: gibibytes", &HAMI, "1g", Some(GIB)),
            ("HAMi-core reads 10 bytes here; we refuse", &HAMI, "10Gi", None),
            ("HAMi-core has no t", &HAMI, "1t", None),
            ("HAMi-core reads 1 GiB here; we refuse", &HAMI, "1.5g", None),
            ("HAMi-core reads 8 MiB here; we refuse", &HAMI, "010m", None),
            ("HAMi-core takes it as no limit; we refuse", &HAMI, "-1", None),
            ("vgpu-manager: tebibytes", &MANAGER, "1t", Some(TIB)),
            ("Alnair: bytes only", &ALNAIR, "1g", None),
            ("Alnair: bytes", &ALNAIR, "1073741824", Some(GIB)),
            ("policy: with a unit", &POLICY, "4Gi", Some(4 * GIB)),
            ("policy: never without", &POLICY, "4096", None),
        ];
        for (description, units, text, expected) in cases {
            assert_eq!(units.parse(text), *expected, "{description}: {text:?}");
        }
    }

    #[test]
    fn percentages() {
        let cases = [
            ("the least", "1", Some(1)),
            ("the most", "100", Some(100)),
            ("too much", "101", None),
            ("zero", "0", None),
            ("a sign", "-5", None),
            ("with its unit", "30%", None),
            ("a fraction", "30.5", None),
        ];
        for (description, text, expected) in cases {
            assert_eq!(percent(text), expected, "{description}: {text:?}");
        }
        let cases = [
            ("a limit", "30", Some(Some(30))),
            ("zero means none", "0", Some(None)),
            ("a hundred means none", "100", Some(None)),
            ("so does more", "400", Some(None)),
            ("a sign", "-1", None),
            ("words", "half", None),
        ];
        for (description, text, expected) in cases {
            assert_eq!(percent_or_none(text), expected, "{description}: {text:?}");
        }
    }
}
