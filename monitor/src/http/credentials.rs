//! What protects the HTTP server: a certificate for TLS, and a token that `/metrics` requires.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::http::uri::Authority;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Shortest token in bytes.
const MIN_TOKEN_LENGTH: usize = 16;

/// Files of the operator.
#[derive(Clone, Debug, Default)]
pub struct CredentialFiles {
    /// Certificate chain and private key, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Token.
    pub token: Option<PathBuf>,
}

/// Content of the files. Not `Debug`, as it is secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Certificate chain and private key, in PEM.
    tls: Option<(String, String)>,
    token: Option<String>,
}

impl CredentialFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, the certificate and the key do not belong together, or the token is too short or has several words.
    pub fn load(&self) -> Result<Credentials, String> {
        let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let pair = |(certificate, key): &(PathBuf, PathBuf)| Ok::<_, String>((read(certificate)?, read(key)?));
        let token = |path: &PathBuf| {
            let token = read(path)?.trim().to_owned();
            let is_token = token.len() >= MIN_TOKEN_LENGTH && token.bytes().all(|byte| byte.is_ascii_graphic());
            let expected = || format!("{}: expected one word of at least {MIN_TOKEN_LENGTH} ASCII characters", path.display());
            is_token.then_some(token).ok_or_else(expected)
        };
        let credentials = Credentials { tls: self.tls.as_ref().map(pair).transpose()?, token: self.token.as_ref().map(token).transpose()? };
        match (credentials.guard(), &self.tls) {
            (Err(error), Some((certificate, key))) => Err(format!("{} and {}: {error}", certificate.display(), key.display())),
            _ => Ok(credentials),
        }
    }
}

impl Credentials {
    /// Returns these in the form in which they are used.
    ///
    /// # Errors
    /// The certificate or the key is malformed, or they do not belong together.
    pub fn guard(&self) -> Result<Guard, String> {
        let acceptor = |(certificate, key): &(String, String)| {
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|error| format!("certificate: {error}"))?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("key: {error}"))?;
            let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).map_err(|error| error.to_string())?;
            Ok::<_, String>(TlsAcceptor::from(Arc::new(config)))
        };
        Ok(Guard { tls: self.tls.as_ref().map(acceptor).transpose()?, is_loopback: false, token: self.token.clone() })
    }
}

/// Credentials in the form in which the server uses them.
#[derive(Clone, Default)]
pub struct Guard {
    /// Acceptor of TLS connections. `None` for plain ones.
    pub tls: Option<TlsAcceptor>,
    /// Whether the client reached the server by the machine's loopback.
    pub is_loopback: bool,
    token: Option<String>,
}

impl Guard {
    /// Returns whether the web page may be asked for by this `Host` header. On the loopback and without a token, only a name that no one else
    /// can make point here is: else a page of another host, in a browser on this machine, could ask under a name of its own.
    #[must_use]
    pub fn allows_host(&self, host: Option<&[u8]>) -> bool {
        let authority = || Authority::try_from(host?).ok();
        let is_own = |host: &str| {
            let address = host.trim_matches(['[', ']']);
            host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
        };
        !self.is_loopback || self.token.is_some() || authority().is_some_and(|authority| is_own(authority.host()))
    }

    /// Returns whether a request with this `Authorization` header may read the metrics. Takes the same time for each wrong token of the right
    /// length.
    #[must_use]
    pub fn allows(&self, authorization: Option<&[u8]>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = authorization.and_then(|header| header.split_at_checked(b"Bearer ".len()));
        given.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(token.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_must_match() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let files = CredentialFiles { token: Some(path.clone()), tls: None };
        for content in ["", "\n", "short", "two words of some length", "0123456789abcde\u{fc}"] {
            fs::write(&path, content).unwrap();
            assert!(files.load().err().unwrap().contains("expected one word"), "{content:?}");
        }
        fs::write(&path, "0123456789abcdef\n").unwrap();
        let guard = files.load().unwrap().guard().unwrap();
        for (header, allowed) in [
            (Some("Bearer 0123456789abcdef"), true),
            (Some("bearer 0123456789abcdef"), true),
            (Some("Bearer 0123456789abcdeg"), false),
            (Some("Bearer 0123456789abcdef0"), false),
            (Some("Bearer "), false),
            (Some("Basic 0123456789abcdef"), false),
            (Some("0123456789abcdef"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(guard.allows(header.map(str::as_bytes)), allowed, "{header:?}");
        }
        assert!(Guard::default().allows(None), "no token is required");
    }

    #[test]
    fn pages_of_other_hosts_cannot_ask_on_the_loopback() {
        let open = Guard { is_loopback: true, ..Guard::default() };
        for host in ["localhost", "LOCALHOST:9394", "127.0.0.1:9394", "[::1]:9394", "10.0.0.1"] {
            assert!(open.allows_host(Some(host.as_bytes())), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9394", "127.0.0.1.evil.example", "", "a b", "x@"] {
            assert!(!open.allows_host(Some(host.as_bytes())), "{host}");
            let with_token = Guard { token: Some("0123456789abcdef".to_owned()), ..open.clone() };
            assert!(with_token.allows_host(Some(host.as_bytes())) && Guard::default().allows_host(Some(host.as_bytes())), "{host}");
        }
        assert!(!open.allows_host(None));
    }

    #[test]
    fn malformed_certificates_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["crt", "key"].map(|name| dir.path().join(name));
        let files = CredentialFiles { tls: Some((certificate.clone(), key.clone())), token: None };
        assert!(files.load().err().unwrap().contains("crt: No such file"));
        for path in [certificate, key] {
            fs::write(path, "text").unwrap();
        }
        assert!(files.load().err().unwrap().contains("crt and "));
    }
}
