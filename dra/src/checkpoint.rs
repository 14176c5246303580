//! Checkpoint of prepared claims, written to disk before anything else is done for them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::claim::Grant;
use crate::storage::{self, Storage, at_path};

/// Claim that is prepared or being prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedEntry {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// Shares allocated to the claim.
    pub grants: Vec<Grant>,
}

impl fmt::Display for PreparedEntry {
    /// Formats the claim's name as `NAMESPACE/NAME`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// Prepared claims by UID.
pub type PreparedClaims = BTreeMap<String, PreparedEntry>;

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct CheckpointFile {
    version: u32,
    claims: PreparedClaims,
}

/// Version of the format. It changes only if the previous release could not prepare the claims of a file that this one writes.
const VERSION: u32 = 1;

/// Interval at which a lock that another instance holds is tried again.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Time for which a lock is tried. An instance holds it while it writes a claim's files.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Path of the checkpoint file.
#[derive(Clone, Debug)]
pub struct Checkpoint(pub PathBuf);

/// Lock of the checkpoint, held until it is dropped or the process ends.
#[derive(Debug)]
#[must_use]
pub struct Lock(#[expect(dead_code, reason = "dropping it releases the lock")] File);

impl Checkpoint {
    /// Waits for the lock that the plugin's instances on this node take before they change the checkpoint and the claims' files: during a
    /// rolling update, two run at once.
    ///
    /// # Errors
    /// The lock file cannot be opened, or another process holds the lock for too long.
    pub async fn lock(&self) -> Result<Lock, String> {
        let path = self.0.with_extension("lock");
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(at_path(&path))?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(at_path(&path))?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_TIMEOUT => tokio::time::sleep(LOCK_RETRY_INTERVAL).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(format!("{}: locked by another process for {} s", path.display(), LOCK_TIMEOUT.as_secs()));
                }
                Err(TryLockError::Error(error)) => return Err(at_path(&path)(error)),
            }
        }
    }

    /// Loads the claims, also those of a newer version as long as it only added fields: a downgrade must not lose claims. A missing file means no claims.
    ///
    /// # Errors
    /// The file cannot be read, or its format is unknown. It is not reset then, as its claims may be in use.
    pub fn load(&self) -> Result<PreparedClaims, String> {
        let path = &self.0;
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PreparedClaims::new()),
            Err(error) => return Err(at_path(path)(error)),
        };
        let advice = "move it away if no pod on this node uses a claim";
        let file: CheckpointFile = serde_json::from_slice(&text).map_err(|error| format!("{}: {error} ({advice})", path.display()))?;
        if file.version != VERSION {
            return Err(format!("{}: version {}: expected {VERSION} ({advice})", path.display(), file.version));
        }
        Ok(file.claims)
    }

    /// Saves the claims.
    ///
    /// # Errors
    /// The file cannot be written; it is unchanged then.
    pub fn save(&self, storage: &dyn Storage, claims: &PreparedClaims) -> Result<(), String> {
        let file = CheckpointFile { version: VERSION, claims: claims.clone() };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| error.to_string())?;
        storage.write(&self.0, &text).map_err(at_path(&self.0))
    }

    /// Removes the temporary file that a crash may have left.
    pub fn remove_temporary(&self) {
        let _ = fs::remove_file(storage::temporary_path(Path::new(&self.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_round_trip_and_unknown_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint(dir.path().join("plugin/checkpoint.json"));
        assert_eq!(checkpoint.load().unwrap(), PreparedClaims::new());
        let entry = PreparedEntry { namespace: "ns".to_owned(), name: "c".to_owned(), grants: Vec::new() };
        let claims = PreparedClaims::from([("uid".to_owned(), entry)]);
        checkpoint.save(&storage::LocalStorage, &claims).unwrap();
        assert_eq!(checkpoint.load().unwrap(), claims);
        for (text, expected) in [("", "EOF"), (r#"{"version":2,"claims":{}}"#, "version 2: expected 1")] {
            fs::write(&checkpoint.0, text).unwrap();
            let error = checkpoint.load().unwrap_err();
            assert!(error.contains(expected) && error.contains("move it away"), "{error}");
        }
    }

    #[test]
    fn file_is_read_by_older_and_newer_releases() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint(dir.path().join("checkpoint.json"));
        // As the first release wrote it, and with fields that a later one might add.
        let grant = r#"{"request":"r","pool":"n","device":"d","uuid":"GPU-1","memory":1,"cores":30,"minor":0"#;
        for more in ["", r#","later":{"a":1}"#] {
            let text =
                format!(r#"{{"version":1,"claims":{{"uid":{{"namespace":"ns","name":"c","grants":[{grant}{more}}}]{more}}}}}{more}}}"#);
            fs::write(&checkpoint.0, text).unwrap();
            let claims = checkpoint.load().unwrap();
            assert_eq!((claims["uid"].grants[0].memory, claims["uid"].grants[0].admin), (1, false));
            // What the first release required is written.
            checkpoint.save(&storage::LocalStorage, &claims).unwrap();
            let text = fs::read_to_string(&checkpoint.0).unwrap().replace([' ', '\n'], "");
            assert!(text.contains(r#""version":1"#) && text.contains(grant), "{text}");
        }
    }

    #[tokio::test]
    async fn lock_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint(dir.path().join("checkpoint.json"));
        let lock = checkpoint.lock().await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(50), checkpoint.lock()).await;
        assert!(second.is_err(), "the lock is taken");
        drop(lock);
        assert!(checkpoint.lock().await.is_ok());
    }
}
