//! What these tests stand in for: an API server, a kubelet, a container runtime that applies CDI, and GPUs.

pub mod api_server;
pub mod cdi;
pub mod gpus;
pub mod kubelet;
pub mod manifests;
pub mod plugin;
pub mod schemas;

/// Waits for something that comes by itself.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = found() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what} does not come");
}
