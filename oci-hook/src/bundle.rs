//! An OCI bundle. `config.json` stays a JSON value: a typed round trip would drop the fields it does not know.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::path::absolute;
use crate::spec::Spec;

/// A bundle whose `config.json` has been read.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The folder.
    pub dir: PathBuf,
    /// Its `config.json`, or what stands for it.
    pub config: PathBuf,
    /// The text of that file.
    pub text: Vec<u8>,
    /// What it says.
    pub spec: Spec,
}

impl Bundle {
    /// Reads the bundle in `dir`, and `config` instead of its `config.json` if there is one.
    ///
    /// # Errors
    /// It cannot be read, or is not JSON.
    pub fn load(dir: &Path, config: Option<&Path>) -> Result<Self> {
        let dir = dir.canonicalize().map_err(Error::io("open the bundle", dir))?;
        let config = config.map_or_else(|| dir.join("config.json"), Path::to_owned);
        let text = std::fs::read(&config).map_err(Error::io("read", &config))?;
        let spec = serde_json::from_slice(&text)
            .map_err(|why| Error::Other(format!("{}: {why}", vgpu_config::error::one_line(&config.display().to_string()))))?;
        Ok(Self { dir, config, text, spec: Spec(spec) })
    }

    /// Where the container's root file system is.
    ///
    /// # Errors
    /// The specification does not say.
    pub fn rootfs(&self) -> Result<PathBuf> {
        let path = self.spec.0.pointer("/root/path").and_then(Value::as_str);
        path.map(|path| absolute(&self.dir, Path::new(path)))
            .ok_or_else(|| Error::Other("config.json has no root.path: accepted is a bundle with a root file system".to_owned()))
    }
}

#[cfg(test)]
mod tests;
