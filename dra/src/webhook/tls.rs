//! TLS certificate of the webhook.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::storage::at_path;

/// Certificate and private key, reloaded when the certificate's file changes: it is renewed while the webhook runs.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    /// Acceptor of the last load, and the certificate's modification time then.
    loaded: Option<(Option<SystemTime>, TlsAcceptor)>,
}

impl Tls {
    /// Returns the certificate and key in these files, not loaded yet.
    #[must_use]
    pub fn new(certificate: PathBuf, key: PathBuf) -> Self {
        Self { certificate, key, loaded: None }
    }

    /// Returns an acceptor with the current certificate.
    ///
    /// # Errors
    /// The files cannot be read, or the key does not match the certificate.
    pub fn acceptor(&mut self) -> Result<TlsAcceptor, String> {
        let modified = std::fs::metadata(&self.certificate).and_then(|metadata| metadata.modified()).ok();
        if let Some((loaded_modified, acceptor)) = &self.loaded
            && *loaded_modified == modified
        {
            return Ok(acceptor.clone());
        }
        let chain = CertificateDer::pem_file_iter(&self.certificate).map_err(at_path(&self.certificate))?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(at_path(&self.certificate))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(at_path(&self.key))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).map_err(at_path(&self.certificate))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        self.loaded = Some((modified, acceptor.clone()));
        Ok(acceptor)
    }
}
