//! Settings: a key, its value, and where it was set.

/// Where something was said, and how: enough to name it in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What kind of place the key lives in.
    pub place: Place,
    /// The key as it was written.
    pub key: String,
    /// The value as it was written.
    pub value: String,
}

/// The places in which a key can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An OCI annotation of the container or its pod.
    Annotation,
    /// The environment of the container's process.
    Environment,
    /// A file that a device plugin wrote for the container.
    File,
    /// The operator's policy file.
    Policy,
}

impl Setting {
    /// A setting made by an annotation.
    pub fn annotation(key: &str, value: &str) -> Self {
        Self { place: Place::Annotation, key: key.to_owned(), value: value.to_owned() }
    }

    /// A setting made by the container's environment.
    pub fn environment(key: &str, value: &str) -> Self {
        Self { place: Place::Environment, key: key.to_owned(), value: value.to_owned() }
    }
}

/// A value and who said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<T> {
    /// What was said.
    pub value: T,
    /// How, for messages.
    pub by: Setting,
}
