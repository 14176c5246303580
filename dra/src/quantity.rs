//! Kubernetes' quantities: `10Gi`, `3000M`, `1e9`, `1.5Ki`.

const BINARY_SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Reads a quantity as a whole number, rounded up as Kubernetes does. `None`: it is none, is negative, or does not fit.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    parse_scaled(text).map(|(value, _)| value)
}

/// The same for what has to be a whole number, as extended resources do.
#[must_use]
pub fn parse_exact(text: &str) -> Option<u64> {
    parse_scaled(text).filter(|(_, exact)| *exact).map(|(value, _)| value)
}

/// The number, and whether it is the quantity itself.
fn parse_scaled(text: &str) -> Option<(u64, bool)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() + fraction.len() > 18 {
        return None;
    }
    let value: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (times, mut tens) = suffix_scale(suffix)?;
    tens -= i32::try_from(fraction.len()).ok()?;
    let scale = 10_u128.checked_pow(tens.unsigned_abs())?;
    let value = value.checked_mul(times)?;
    let exact = tens >= 0 || value.is_multiple_of(scale);
    let value = if tens < 0 { value.div_ceil(scale) } else { value.checked_mul(scale)? };
    Some((u64::try_from(value).ok()?, exact))
}

/// What a suffix stands for: a factor, and a power of ten.
fn suffix_scale(suffix: &str) -> Option<(u128, i32)> {
    const DECIMAL_SUFFIXES: [(&str, i32); 10] =
        [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
    if let Some(place) = BINARY_SUFFIXES.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (place + 1)), 0));
    }
    if let Some((_, tens)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some((1, *tens));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-18..=18).contains(&exponent).then_some((1, exponent))
}

/// So many bytes, cut to whole MiB, in the one form in which an API server gives them back.
#[must_use]
pub fn format_mib(bytes: u64) -> String {
    let (mut value, mut place) = (bytes >> 20, 1);
    while value > 0 && value.is_multiple_of(1024) && place + 1 < BINARY_SUFFIXES.len() {
        value /= 1024;
        place += 1;
    }
    if value == 0 { "0".to_owned() } else { format!("{value}{}", BINARY_SUFFIXES[place]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
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
