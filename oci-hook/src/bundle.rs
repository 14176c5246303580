//! OCI bundles.

use std::path::{Path, PathBuf};

use serde_json::Value;
use vgpu_config::error::one_line;
use vgpu_config::policy;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::path::absolute;
use crate::spec::Spec;

/// A bundle whose `config.json` has been read.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The bundle directory.
    pub dir: PathBuf,
    /// The path of `config.json`, or of the file used instead of it.
    pub config: PathBuf,
    /// The text of that file.
    pub text: Vec<u8>,
    /// The parsed specification.
    pub spec: Spec,
}

impl Bundle {
    /// Reads the bundle in `dir`, with `config` instead of its `config.json` if given.
    ///
    /// # Errors
    /// The file cannot be read or is not JSON.
    pub fn load(dir: &Path, config: Option<&Path>) -> Result<Self> {
        let dir = dir.canonicalize().map_err(Error::io("open the bundle", dir))?;
        let config = config.map_or_else(|| dir.join("config.json"), Path::to_owned);
        let text = std::fs::read(&config).map_err(Error::io("read", &config))?;
        let json =
            serde_json::from_slice(&text).map_err(|why| Error::Other(format!("{}: {why}", one_line(&config.display().to_string()))))?;
        let engine = Engine::of(&dir, policy::Engine::Auto);
        Ok(Self { dir, config, text, spec: Spec { json, engine } })
    }

    /// Returns the bundle as one of the engine that the policy names.
    #[must_use]
    pub fn of_engine(mut self, policy: policy::Engine) -> Self {
        self.spec.engine = Engine::of(&self.dir, policy);
        self
    }

    /// Returns the path of the container's root file system.
    ///
    /// # Errors
    /// The specification has none.
    pub fn rootfs(&self) -> Result<PathBuf> {
        let path = self.spec.json.pointer("/root/path").and_then(Value::as_str);
        path.map(|path| absolute(&self.dir, Path::new(path)))
            .ok_or_else(|| Error::Other("config.json: root.path: expected a root file system".to_owned()))
    }
}

#[cfg(test)]
mod tests;
