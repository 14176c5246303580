//! Which claims are prepared, on storage before anything is done for them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::claim::Grant;
use crate::storage::{self, Storage, at_path};

/// A claim that is prepared or being prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedEntry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its shares.
    pub grants: Vec<Grant>,
}

/// All of them, by UID.
pub type PreparedClaims = BTreeMap<String, PreparedEntry>;

#[derive(Serialize, Deserialize)]
struct CheckpointFile {
    version: u32,
    claims: PreparedClaims,
}

const VERSION: u32 = 1;

/// The file.
#[derive(Clone, Debug)]
pub struct Checkpoint(pub PathBuf);

impl Checkpoint {
    /// Reads it. One that is not there is empty.
    ///
    /// # Errors
    /// It cannot be read, or is not of ours. PreparedClaims in it might be in use, so it is not started anew.
    pub fn load(&self) -> Result<PreparedClaims, String> {
        let path = &self.0;
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(PreparedClaims::new()),
            Err(error) => return Err(at_path(path)(error)),
        };
        let advice = "move it away if no pod of this node has a claim";
        let written: CheckpointFile = serde_json::from_slice(&text).map_err(|error| format!("{}: {error} ({advice})", path.display()))?;
        if written.version != VERSION {
            return Err(format!("{}: version {}, accepted is {VERSION} ({advice})", path.display(), written.version));
        }
        Ok(written.claims)
    }

    /// Writes it.
    ///
    /// # Errors
    /// It cannot be written; then it is what it was.
    pub fn save(&self, storage: &dyn Storage, claims: &PreparedClaims) -> Result<(), String> {
        let written = CheckpointFile { version: VERSION, claims: claims.clone() };
        let text = serde_json::to_vec_pretty(&written).map_err(|error| error.to_string())?;
        storage.write(&self.0, &text).map_err(at_path(&self.0))
    }

    /// Takes away what a crash left half-written.
    pub fn remove_temporary(&self) {
        let _ = fs::remove_file(storage::temporary_path(Path::new(&self.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint(dir.path().join("plugin/checkpoint.json"));
        assert_eq!(checkpoint.load().unwrap(), PreparedClaims::new());
        let entry = PreparedEntry { namespace: "ns".to_owned(), name: "c".to_owned(), grants: Vec::new() };
        let claims = PreparedClaims::from([("uid".to_owned(), entry)]);
        checkpoint.save(&storage::LocalStorage, &claims).unwrap();
        assert_eq!(checkpoint.load().unwrap(), claims);
        for (text, expected) in [("", "EOF"), (r#"{"version":2,"claims":{}}"#, "version 2")] {
            fs::write(&checkpoint.0, text).unwrap();
            let why = checkpoint.load().unwrap_err();
            assert!(why.contains(expected) && why.contains("move it away"), "{why}");
        }
    }
}
