//! Unix sockets on which the plugin serves the kubelet.

use std::future::Future;
use std::path::Path;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::kubelet::Plugin;
use crate::storage::at_path;

/// Listens on a socket that only root may connect to. Replaces a stale socket.
///
/// # Errors
/// The directory cannot be created, or the socket cannot be bound.
pub fn listen(path: &Path) -> Result<UnixListener, String> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(at_path(path))?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at_path(path)(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(at_path(path))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(at_path(path))?;
    Ok(listener)
}

/// Removes the sockets in a folder that a killed instance left: those whose names start and end like `path`'s would under other instances'
/// names, and on which nobody listens.
pub fn remove_stale(path: &Path, prefix: &str, suffix: &str) {
    let entries = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix));
        let refuses = |path: &Path| {
            std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if is_ours && entry.path() != path && refuses(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns the device and inode of a path, which tell our socket from a successor's.
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Serves on a socket until `stop` completes, then removes it.
///
/// # Errors
/// The socket fails.
pub async fn serve(plugin: Plugin, path: &Path, listener: UnixListener, stop: impl Future<Output = ()>) -> Result<(), String> {
    let ours = identity(path);
    let served = tonic::transport::Server::builder().serve_with_incoming_shutdown(plugin, UnixListenerStream::new(listener), stop).await;
    // A successor may have replaced the socket already.
    if ours.is_some() && identity(path) == ours {
        let _ = std::fs::remove_file(path);
    }
    served.map_err(|error| format!("{}: {error}", path.display()))
}
