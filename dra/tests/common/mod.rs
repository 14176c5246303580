//! Stand-ins for an API server, a kubelet, a container runtime that applies CDI, and GPUs.

pub mod api_server;
pub mod cdi;
pub mod gpus;
pub mod kubelet;
pub mod manifests;
pub mod plugin;
pub mod schemas;
pub mod slice_validation;

/// Waits until `find` returns a value. Panics with `what` if it does not.
pub fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = find() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited in vain for {what}");
}
