//! Files that are replaced by rename, so that a reader sees the old content or the new one, never a part.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Replaces the file at `path`, which is readable by all users.
///
/// # Errors
/// The new file cannot be written next to the old one, or cannot be renamed.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new().prefix(".new.").permissions(Permissions::from_mode(0o644)).tempfile_in(dir)?;
    new.write_all(content)?;
    // The umask may have removed permissions at creation.
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(())
}
