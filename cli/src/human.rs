//! Human-readable byte counts and durations.

/// Formats a byte count with at most four digits and a binary unit: `512Mi`, `1.5Gi`.
///
/// `vgpu set` accepts results without a fraction.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let fitting = units.iter().find(|(shift, _)| bytes >> shift != 0);
    let Some((shift, unit)) = fitting else { return bytes.to_string() };
    if bytes & ((1 << shift) - 1) == 0 {
        return format!("{}{unit}", bytes >> shift);
    }
    let amount = bytes as f64 / (1_u64 << shift) as f64;
    if amount < 100.0 { format!("{amount:.1}{unit}") } else { format!("{amount:.0}{unit}") }
}

/// Formats a duration, given in seconds, in its largest whole unit: `45s`, `3m`, `2h`, `5d`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m", whole / 60),
        3600..86400 => format!("{}h", whole / 3600),
        _ => format!("{}d", whole / 86400),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn byte_counts_and_durations_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 20, "1Mi"),
            (3 << 29, "1.5Gi"),
            (80 << 30, "80Gi"),
            (1 << 40, "1Ti"),
            ((140 << 30) + 5, "140Gi"),
        ] {
            assert_eq!(super::bytes(bytes), text);
        }
        for (seconds, text) in [(-1.0, "0s"), (59.9, "59s"), (61.0, "1m"), (7200.0, "2h"), (200_000.0, "2d")] {
            assert_eq!(super::duration(seconds), text);
        }
    }
}
