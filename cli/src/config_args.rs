//! The options `--config` and `--state-dir`, shared by all subcommands that look at containers.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vgpu_config::{Policy, policy};
use vgpu_oci_hook::process::rootless_user;
use vgpu_oci_hook::state::CONTAINERS;

/// Location of the policy file, and through it of the state directory.
#[derive(Debug, Clone, clap::Args)]
pub struct ConfigArgs {
    /// Policy file (default: $VGPU_CONFIG, or /etc/vgpu/config.toml)
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// State directory (default: the policy's, else /run/vgpu; for users other than root /run/user/UID/vgpu, or /tmp/vgpu-UID if
    /// /run/user/UID does not exist)
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<PathBuf>,
}

impl ConfigArgs {
    /// Loads the policy.
    pub(crate) fn policy(&self) -> vgpu_config::Result<Policy> {
        let path = self.config.clone().or_else(|| std::env::var_os(policy::VARIABLE).map(PathBuf::from));
        Policy::load(path.as_deref())
    }

    /// Returns the state directory for a command that looks at its containers.
    ///
    /// # Errors
    /// They cannot be listed; or this user has none, while those of the machine are root's to list.
    pub(crate) fn listed_state_dir(&self) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let dir = self.state_dir()?;
        let entries = std::fs::read_dir(dir.join(CONTAINERS));
        if let Err(error) = &entries
            && error.kind() == ErrorKind::PermissionDenied
        {
            return Err(format!("{}: {error}: expected root, or the user whose containers these are", dir.display()).into());
        }
        if let Some((uid, of_machine)) = self.unlisted() {
            let (dir, of_machine) = (dir.display(), of_machine.display());
            if entries.map_or(true, |mut entries| entries.next().is_none()) {
                return Err(format!("user {uid} has no containers in {dir}: expected root, who can list those in {of_machine}").into());
            }
            eprintln!("vgpu: note: only the containers of user {uid} are listed; root can list those in {of_machine}");
        }
        Ok(dir)
    }

    /// Returns the user who runs this and the state directory of the machine, unless its containers are listed.
    fn unlisted(&self) -> Option<(u32, PathBuf)> {
        let uid = rootless_user().filter(|_| self.state_dir.is_none())?;
        let policy = self.policy().ok().filter(|policy| policy.state_dir.is_none())?;
        let of_machine = policy.state_dir(None);
        of_machine.join(CONTAINERS).exists().then_some((uid, of_machine))
    }

    /// Returns the state directory: the named one, the policy's, or the default for the current user.
    pub(crate) fn state_dir(&self) -> Result<PathBuf, Box<dyn std::error::Error>> {
        if let Some(named) = &self.state_dir {
            return Ok(std::path::absolute(named)?);
        }
        let policy = self.policy()?;
        let user = rootless_user();
        let usual = policy.state_dir(user);
        match user {
            Some(uid) if policy.state_dir.is_none() && !usual.parent().is_some_and(Path::is_dir) => {
                let other = PathBuf::from(format!("/tmp/vgpu-{uid}"));
                check_private(&other)?;
                Ok(other)
            }
            _ => Ok(usual),
        }
    }
}

/// Refuses a folder that exists and is another user's, or that other users may write: everybody can create a folder in `/tmp`.
fn check_private(path: &Path) -> Result<(), String> {
    let expected = || format!("{}: expected a folder of this user with mode 0700, or none", path.display());
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0 => Ok(()),
        Ok(_) => Err(expected()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_private_folder_is_used_in_tmp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vgpu-1");
        assert_eq!(check_private(&path), Ok(()), "absent");
        std::fs::create_dir(&path).unwrap();
        for (mode, is_private) in [(0o700, true), (0o711, false), (0o770, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_private(&path).is_ok(), is_private, "{mode:o}");
        }
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(dir.path(), &path).unwrap();
        assert!(check_private(&path).is_err(), "a link");
    }
}
