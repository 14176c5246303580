//! Fuzz targets: one function for each parser, or group of parsers, of what a tenant, an image, a pod's author or an operator writes.
//!
//! A target gets arbitrary bytes, and panics on a wrong answer. `libfuzzer/` is the fuzzer's workspace, which gives each target a program;
//! `corpus/` has inputs that reach different code, and `regressions/` inputs that once failed. The test `replay` runs all of them.
//!
//! | target | what it gets | who writes that |
//! |---|---|---|
//! | [`device_code`] | PTX, a cubin or a fat binary | image, tenant |
//! | [`account`] | a container's region, with its trace rings | tenant |
//! | [`request`] | annotations, variables and the operator's policy | pod's author, tenant's image, operator |
//! | [`bundle`] | an OCI specification | pod's author through the engine |
//! | [`arguments`] | a runtime's arguments, an image's `ld.so.preload`, container ids | engine, image |
//! | [`host_files`] | policy, inventory, records, claim shares | operator, vgpu |
//! | [`containerd`] | containerd's configuration | operator |
//! | [`docker`] | Docker's daemon.json | operator |
//! | [`webhook`] | pods and quantities | pod's author |
//! | [`claim`] | allocated claims | scheduler |

mod account;
mod device_code;
mod engines;
mod kubernetes;
mod request;
mod spec;

pub use account::account;
pub use device_code::device_code;
pub use engines::{containerd, docker};
pub use kubernetes::{claim, webhook};
pub use request::request;
pub use spec::{arguments, bundle, host_files};

/// Function of a target.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 10] = [
    ("account", account),
    ("arguments", arguments),
    ("bundle", bundle),
    ("claim", claim),
    ("containerd", containerd),
    ("device_code", device_code),
    ("docker", docker),
    ("host_files", host_files),
    ("request", request),
    ("webhook", webhook),
];
