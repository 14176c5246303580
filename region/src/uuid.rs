//! UUIDs of GPUs and MIG devices, as reported by the driver and NVML.

/// The 16 bytes of a GPU's or MIG device's UUID, in the order they are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Parses `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, `MIG-…`, or the bare digits. Returns `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text).as_bytes();
        if digits.len() != 36 {
            return None;
        }
        let mut bytes = [0u8; 16];
        let mut at = 0;
        for (position, &digit) in digits.iter().enumerate() {
            if matches!(position, 8 | 13 | 18 | 23) {
                if digit != b'-' {
                    return None;
                }
                continue;
            }
            let value = (digit as char).to_digit(16)? as u8;
            let byte = bytes.get_mut(at / 2)?;
            *byte = (*byte << 4) | value;
            at += 1;
        }
        Some(Self(bytes))
    }

    /// Returns the UUID as two words, for atomics.
    #[must_use]
    pub fn words(self) -> [u64; 2] {
        let value = u128::from_be_bytes(self.0);
        [(value >> 64) as u64, value as u64]
    }

    /// Converts the two words of [`Uuid::words`].
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        Self(((u128::from(words[0]) << 64) | u128::from(words[1])).to_be_bytes())
    }
}

impl core::fmt::Display for Uuid {
    /// Writes the form that NVML prints for a whole GPU: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str("GPU-")?;
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                out.write_str("-")?;
            }
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_text() {
        let text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        let uuid = Uuid::parse(text).unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(Uuid::from_words(uuid.words()), uuid);
        assert_eq!(Uuid::parse(&text[4..]), Some(uuid));
        assert_eq!(Uuid::parse(&text.replace("GPU", "MIG")), Some(uuid));
    }

    #[test]
    fn rejects_other_texts() {
        for bad in ["", "GPU-", "GPU-0123456789ab-cdef-0123-456789abcdef", "GPU-01234567-89ab-cdef-0123-456789abcdeg", "0", "all"] {
            assert_eq!(Uuid::parse(bad), None, "{bad}");
        }
    }
}
