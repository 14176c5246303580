//! The inputs of the dialects.

use std::collections::BTreeMap;

use crate::dialect::claims::ClaimFile;

/// The parts of a container's specification that dialects read.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The OCI annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The environment of the container's process. Of a repeated variable, the last value.
    pub env: &'a BTreeMap<String, String>,
    /// The container's name in its pod.
    pub container: Option<&'a str>,
    /// The content of Alnair's limits file, if the container has one.
    pub alnair_limits: Option<&'a str>,
    /// The shares of Kubernetes resource claims that the container has.
    pub claims: &'a [ClaimFile],
}
