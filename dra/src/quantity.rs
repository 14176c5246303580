//! Kubernetes quantities: `10Gi`, `3000M`, `1e9`, `1.5Ki`.

const BINARY_SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Parses a quantity as an integer, rounded up as Kubernetes does. Returns `None` if it is malformed, negative or too large for `u64`.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    parse_scaled(text).map(|(value, _)| value)
}

/// Parses a quantity like [`parse`], but returns `None` for fractions. Extended resources must be integers.
#[must_use]
pub fn parse_exact(text: &str) -> Option<u64> {
    parse_scaled(text).filter(|(_, exact)| *exact).map(|(value, _)| value)
}

/// Returns the number, rounded up, and whether it is exact.
fn parse_scaled(text: &str) -> Option<(u64, bool)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() + fraction.len() > 18 {
        return None;
    }
    let value: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, mut exponent) = suffix_scale(suffix)?;
    exponent -= i32::try_from(fraction.len()).ok()?;
    let scale = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let value = value.checked_mul(factor)?;
    let exact = exponent >= 0 || value.is_multiple_of(scale);
    let value = if exponent < 0 { value.div_ceil(scale) } else { value.checked_mul(scale)? };
    Some((u64::try_from(value).ok()?, exact))
}

/// Returns the factor and the power of ten that a suffix stands for.
fn suffix_scale(suffix: &str) -> Option<(u128, i32)> {
    const DECIMAL_SUFFIXES: [(&str, i32); 10] =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some(index) = BINARY_SUFFIXES.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (index + 1)), 0));
    }
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some((1, *exponent));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-18..=18).contains(&exponent).then_some((1, exponent))
}

/// Formats bytes, rounded down to whole MiB, in the API server's canonical form, so that values read back compare equal.
#[must_use]
pub fn format_mib(bytes: u64) -> String {
    let (mut value, mut index) = (bytes >> 20, 1);
    while value > 0 && value.is_multiple_of(1024) && index + 1 < BINARY_SUFFIXES.len() {
        value /= 1024;
        index += 1;
    }
    if value == 0 { "0".to_owned() } else { format!("{value}{}", BINARY_SUFFIXES[index]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_and_format() {
        let cases = [
            ("0", Some(0)),
            ("30", Some(30)),
            ("10Gi", Some(10 << 30)),
            ("1536Mi", Some(1536 << 20)),
            ("1.5Gi", Some(1536 << 20)),
            ("10G", Some(10_000_000_000)),
            ("1e9", Some(1_000_000_000)),
            ("1E3", Some(1000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("3000m", Some(3)),
            ("3001m", Some(4)),
            ("16Ei", None),
            ("-1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("10GiB", None),
            ("1e99", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        for (text, expected) in [("3k", Some(3000)), ("2000m", Some(2)), ("1.5", None), ("1500m", None), ("1.0", Some(1)), ("x", None)] {
            assert_eq!(parse_exact(text), expected, "{text:?}");
        }
        for (bytes, expected) in [((24 << 30) + 12345, "24Gi"), (143_771 << 20, "143771Mi"), (1 << 40, "1Ti"), (1, "0")] {
            assert_eq!(format_mib(bytes), expected);
        }
    }
}
