//! Command-line arguments of the form `--name value`.

/// The program's arguments.
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Returns the arguments of this process.
    #[must_use]
    pub fn of_process() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    /// Returns the value that follows `--name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument.strip_prefix("--") == Some(name))?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// Returns the values that follow every `--name`.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.0.windows(2);
        pairs.filter(move |pair| pair[0].strip_prefix("--") == Some(name)).map(|pair| pair[1].as_str())
    }

    /// Returns the number that follows `--name`, with an optional suffix K, M or G (powers of 1024); `default` if it is absent. Exits
    /// with status 2 if the value is not a number.
    #[must_use]
    pub fn number(&self, name: &str, default: u64) -> u64 {
        let Some(text) = self.value(name) else { return default };
        parse(text).unwrap_or_else(|| {
            eprintln!("--{name} {text}: expected a number, optionally with K, M or G");
            std::process::exit(2)
        })
    }

    /// Returns whether `--name` is present.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|argument| argument.strip_prefix("--") == Some(name))
    }
}

fn parse(text: &str) -> Option<u64> {
    let units = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let unit = units.iter().find(|(suffix, _)| text.ends_with(*suffix));
    match unit {
        Some((suffix, factor)) => text.strip_suffix(*suffix)?.parse::<u64>().ok()?.checked_mul(*factor),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_values_numbers_and_flags() {
        let arguments = Arguments(["--chunk", "64M", "--api", "vmm", "--quiet"].map(String::from).to_vec());
        assert_eq!(arguments.number("chunk", 1), 64 << 20);
        assert_eq!(arguments.number("max", 7), 7);
        assert_eq!(arguments.value("api"), Some("vmm"));
        assert!(arguments.has("quiet") && !arguments.has("loud"));
        assert_eq!(parse("12Q"), None);
    }
}
