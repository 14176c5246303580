//! Checkpoint of prepared claims, written to disk before anything else is done for them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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

#[derive(Serialize, Deserialize)]
struct CheckpointFile {
    version: u32,
    claims: PreparedClaims,
}

const VERSION: u32 = 1;

/// Path of the checkpoint file.
#[derive(Clone, Debug)]
pub struct Checkpoint(pub PathBuf);

impl Checkpoint {
    /// Loads the claims. A missing file means no claims.
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
}
