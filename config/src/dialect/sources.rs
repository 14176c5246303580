//! What is known of a container when its limits are read.

use std::collections::BTreeMap;

use crate::dialect::claims;

/// Everything that is known of a container when its limits are read.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The OCI annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The environment of the container's process; of a repeated variable the last.
    pub env: &'a BTreeMap<String, String>,
    /// The container's name in its pod.
    pub container: Option<&'a str>,
    /// The contents of Alnair's limits file, where the container has one.
    pub alnair_limits: Option<&'a str>,
    /// The shares of Kubernetes' claims that the container has.
    pub claims: &'a [claims::File],
}
