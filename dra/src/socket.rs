//! The kubelet plugin's sockets.

use std::future::Future;
use std::path::Path;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use crate::kubelet::Plugin;

/// Listens on a socket. One that is left from before is replaced.
///
/// # Errors
/// Its folder cannot be made, or it cannot be bound.
pub fn listen(path: &Path) -> Result<UnixListener, String> {
    use std::os::unix::fs::PermissionsExt;
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(told)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(told(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(told)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(told)?;
    Ok(listener)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Serves on one socket until `stop` is there, and takes the socket away.
///
/// # Errors
/// The socket fails.
pub async fn serve(plugin: Plugin, path: &Path, listener: UnixListener, stop: impl Future<Output = ()>) -> Result<(), String> {
    let ours = identity(path);
    let served = tonic::transport::Server::builder().serve_with_incoming_shutdown(plugin, UnixListenerStream::new(listener), stop).await;
    // Our successor may have put its own there by now.
    if ours.is_some() && identity(path) == ours {
        let _ = std::fs::remove_file(path);
    }
    served.map_err(|error| format!("{}: {error}", path.display()))
}
