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
//! | [`claim`] | allocated claims with parameters | scheduler, pod's author |
//! | [`drop_ins`] | CRI-O's and Podman's configuration | operator |
//! | [`files`] | a root with hostile files, and the path of logs and of HAMi's region in it | tenant |
//! | [`http`] | requests to the monitor | network peer |
//! | [`loader`] | symbols and relocations of a loaded library | image |
//! | [`seccomp`] | a seccomp profile | pod's author through the engine |
//! | [`snapshot`] | names and figures in metrics | pod's author, tenant |
//! | [`turns`] | budgets that the arbiter reads | tenant |

mod account;
mod clients;
mod device_code;
mod engines;
mod files;
mod kubernetes;
mod loader;
mod request;
mod seccomp;
mod snapshots;
mod spec;
mod turns;

pub use account::account;
pub use clients::http;
pub use device_code::device_code;
pub use engines::{containerd, docker, drop_ins};
pub use files::files;
pub use kubernetes::{claim, webhook};
pub use loader::loader;
pub use request::request;
pub use seccomp::seccomp;
pub use snapshots::snapshot;
pub use spec::{arguments, bundle, host_files};
pub use turns::turns;

/// Function of a target.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 17] = [
    ("account", account),
    ("arguments", arguments),
    ("bundle", bundle),
    ("claim", claim),
    ("containerd", containerd),
    ("device_code", device_code),
    ("docker", docker),
    ("drop_ins", drop_ins),
    ("files", files),
    ("host_files", host_files),
    ("http", http),
    ("loader", loader),
    ("request", request),
    ("seccomp", seccomp),
    ("snapshot", snapshot),
    ("turns", turns),
    ("webhook", webhook),
];
