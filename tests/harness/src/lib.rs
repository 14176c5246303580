//! Real containers for end-to-end tests.
//!
//! A [`Bundle`] is a root file system with busybox and a specification that also runs on small virtual machines. A [`Host`] has its own
//! policy, state directory and low-level [`Runtime`]. It runs bundles through `vgpu-runtime`, through the runtime alone, or with hooks.
//!
//! ```no_run
//! use vgpu_test_harness::{Bundle, Host, Runtime};
//! let host = Host::new(Runtime::Runc, "target/debug".as_ref(), "target/libvgpu.so".as_ref());
//! let bundle = Bundle::new().annotation("nvidia.com/gpumem", "1024").shell("cat /etc/ld.so.preload");
//! assert_eq!(host.run(&bundle).stdout, "/usr/local/vgpu/libvgpu.so\n");
//! ```

mod bundle;
mod host;
mod host_rootfs;
mod runtime;

pub use bundle::Bundle;
pub use host::{Container, Host, Outcome, STAND_IN, stand_in};
pub use runtime::{Runtime, can_run};
