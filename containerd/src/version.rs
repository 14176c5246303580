//! The versions of containerd's configuration format, and the differences that matter here.

use toml_edit::DocumentMut;

use crate::error::Error;
use crate::source::Source;

/// A version of the configuration format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// containerd 1.3 to 1.7; later releases still read it.
    V2,
    /// containerd 2.0 and later.
    V3,
    /// Server settings became plugins; equivalent to version 3 here.
    V4,
}

impl Version {
    /// Returns the number in the file.
    pub fn number(self) -> i64 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
            Self::V4 => 4,
        }
    }

    /// Returns the version to write if there is no configuration, for a containerd of version `program` (`"1.7.24"`, `"v2.1.0"`, or the
    /// output of `containerd --version`). Version 2 if that is unknown: every containerd since 1.3 reads it.
    pub fn for_program(program: &str) -> Self {
        let major = program.split_whitespace().find_map(|word| {
            let (major, rest) = word.trim_start_matches('v').split_once('.')?;
            rest.starts_with(|c: char| c.is_ascii_digit()).then(|| major.parse::<u32>().ok())?
        });
        match major {
            Some(major) if major >= 2 => Self::V3,
            _ => Self::V2,
        }
    }

    /// Returns the plugin that has the CRI runtime handlers.
    pub fn cri_plugin(self) -> &'static str {
        match self {
            Self::V2 => "io.containerd.grpc.v1.cri",
            Self::V3 | Self::V4 => "io.containerd.cri.v1.runtime",
        }
    }

    /// Returns whether the containerd releases that write this format replace a plugin's whole section on import.
    pub fn replaces_sections(self) -> bool {
        self == Self::V2
    }

    /// Returns the version that a file declares. `None` for a file without any key, which containerd reads as its defaults.
    pub(crate) fn declared(doc: &DocumentMut, source: &Source) -> Result<Option<Self>, Error> {
        if doc.is_empty() {
            return Ok(None);
        }
        let version = doc.get("version");
        match version.and_then(|v| v.as_integer()) {
            Some(2) => Ok(Some(Self::V2)),
            Some(3) => Ok(Some(Self::V3)),
            Some(4) => Ok(Some(Self::V4)),
            _ => Err(Error::Version {
                path: source.path.display().to_string(),
                version: version.map_or_else(|| "1 (none given)".into(), |v| v.to_string().trim().to_owned()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_for_containerd_releases() {
        for (output, expected) in [
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", Version::V2),
            ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", Version::V2),
            ("containerd github.com/containerd/containerd/v2 2.1.9+unknown ", Version::V3),
            ("containerd github.com/containerd/containerd/v2 v2.0.0 207ad711eabd375a01713109a8a197d197ff6542", Version::V3),
            ("", Version::V2),
            ("containerd unknown", Version::V2),
        ] {
            assert_eq!(Version::for_program(output), expected, "{output}");
        }
    }
}
