//! Settings: a key, its value, and where it was set.

/// A key and its value as they were written, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The origin of the setting.
    pub origin: Origin,
    /// The key as written.
    pub key: String,
    /// The value as written.
    pub value: String,
}

/// Origins of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An OCI annotation of the container or its pod.
    Annotation,
    /// The environment of the container's process.
    Environment,
    /// A file that a device plugin wrote for the container.
    File,
}

impl Setting {
    /// Returns a setting made by an annotation.
    pub fn annotation(key: &str, value: &str) -> Self {
        Self { origin: Origin::Annotation, key: key.to_owned(), value: value.to_owned() }
    }

    /// Returns a setting made by the container's environment.
    pub fn environment(key: &str, value: &str) -> Self {
        Self { origin: Origin::Environment, key: key.to_owned(), value: value.to_owned() }
    }
}

/// A parsed value and the setting that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The parsed value.
    pub value: T,
    /// The setting, for messages.
    pub setting: Setting,
}
