//! The certificate of the webhook.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// A certificate and its key, read again when they have changed: they are renewed while we run.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Option<(Option<SystemTime>, TlsAcceptor)>,
}

impl Tls {
    /// Those in these files.
    #[must_use]
    pub fn new(certificate: PathBuf, key: PathBuf) -> Self {
        Self { certificate, key, loaded: None }
    }

    /// What takes connections now.
    ///
    /// # Errors
    /// The files cannot be read, or do not belong together.
    pub fn acceptor(&mut self) -> Result<TlsAcceptor, String> {
        let changed = std::fs::metadata(&self.certificate).and_then(|found| found.modified()).ok();
        if let Some((known, acceptor)) = &self.loaded
            && *known == changed
        {
            return Ok(acceptor.clone());
        }
        fn at_path<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> String + '_ {
            move |error| format!("{}: {error}", path.display())
        }
        let chain = CertificateDer::pem_file_iter(&self.certificate).map_err(at_path(&self.certificate))?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(at_path(&self.certificate))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(at_path(&self.key))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).map_err(at_path(&self.certificate))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        self.loaded = Some((changed, acceptor.clone()));
        Ok(acceptor)
    }
}
