//! TLS certificates of the webhook and of its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::storage::at_path;

/// Certificate, private key and CA of clients, reloaded when the certificate or the CA changes: they are renewed while the webhook runs.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    /// Acceptor of the last load, and the files' modification times then.
    loaded: Option<([Option<SystemTime>; 2], TlsAcceptor)>,
}

impl Tls {
    /// Returns the certificates and key in these files, not loaded yet. With `client_ca`, certificates of clients are verified.
    #[must_use]
    pub fn new(certificate: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Self {
        Self { certificate, key, client_ca, loaded: None }
    }

    /// Returns true if certificates of clients are verified.
    #[must_use]
    pub fn verifies_clients(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Returns an acceptor with the current certificates. It accepts clients without a certificate, as the kubelet's probes have none, but
    /// no certificate that `client_ca` has not issued.
    ///
    /// # Errors
    /// The files cannot be read, or the key does not match the certificate.
    pub fn acceptor(&mut self) -> Result<TlsAcceptor, String> {
        let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let times = [modified(&self.certificate), self.client_ca.as_deref().and_then(modified)];
        if let Some((loaded_times, acceptor)) = &self.loaded
            && *loaded_times == times
        {
            return Ok(acceptor.clone());
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(at_path(&self.key))?;
        let builder = match &self.client_ca {
            Some(ca) => ServerConfig::builder().with_client_cert_verifier(verifier(ca)?),
            None => ServerConfig::builder().with_no_client_auth(),
        };
        let config = builder.with_single_cert(certificates(&self.certificate)?, key).map_err(at_path(&self.certificate))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        self.loaded = Some((times, acceptor.clone()));
        Ok(acceptor)
    }
}

/// Returns the certificates in a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).map_err(at_path(path))?.collect::<Result<Vec<_>, _>>().map_err(at_path(path))?;
    if all.is_empty() { Err(format!("{}: no certificate: expected PEM", path.display())) } else { Ok(all) }
}

/// Returns a verifier of client certificates that this CA has issued.
fn verifier(ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(at_path(ca))?;
    }
    WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build().map_err(at_path(ca))
}
