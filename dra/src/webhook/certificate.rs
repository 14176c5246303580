//! The webhook's own certificate: made, renewed and announced to the API server by the webhook itself.
//!
//! Certificate, key and CA are in a Secret that all replicas share, and the CA in the webhook's configuration. A renewal makes a new CA,
//! whose key is thrown away once it has issued the certificate. The previous CA stays trusted until the next renewal, so that replicas may
//! notice one at different times.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::cluster::describe;
use crate::storage::{LocalStorage, Storage, at_path};

/// Time for which a certificate is valid.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// Age at which a certificate is renewed.
const RENEWAL: Duration = Duration::from_secs(240 * 24 * 3600);
/// Time before now from which a certificate is valid, for clocks that differ.
const SKEW: Duration = Duration::from_secs(24 * 3600);
/// Interval at which the Secret and the configuration are read.
const INTERVAL: Duration = Duration::from_secs(300);
/// Annotation of the Secret: when to renew it, in seconds since 1970.
const RENEW_AT: &str = "vgpu.io/renew-at";
/// Keys of the Secret: CAs, newest first, certificate, and its key.
const KEYS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// A certificate that the webhook manages.
pub struct OwnCertificate {
    /// Client of the cluster.
    pub client: Client,
    /// Namespace of the webhook.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the MutatingWebhookConfiguration.
    pub configuration: String,
    /// DNS names of the webhook's service.
    pub hosts: Vec<String>,
    /// Files of the certificate and the key, for the server.
    pub files: (PathBuf, PathBuf),
}

impl OwnCertificate {
    /// Makes sure that there is a certificate that need not be renewed at `now`, that the API server trusts it, and that it is in the files.
    ///
    /// # Errors
    /// The API server does not answer, another replica has changed an object at the same time, or a file cannot be written.
    pub async fn refresh(&self, now: SystemTime) -> Result<(), String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = |error: kube::Error| format!("Secret {}/{}: {}", self.namespace, self.secret, describe(&error));
        let known = secrets.get_opt(&self.secret).await.map_err(what)?;
        let current = match known {
            Some(secret) if !is_due(&secret, now) => secret,
            Some(old) => {
                let renewed = Secret { metadata: old.metadata.clone(), ..self.issue(now, Some(&old))? };
                let renewed = secrets.replace(&self.secret, &PostParams::default(), &with_renewal(renewed, now)).await.map_err(what)?;
                info!(secret = self.secret, "renewed the certificate");
                renewed
            }
            None => {
                let mut made = self.issue(now, None)?;
                made.metadata.name = Some(self.secret.clone());
                secrets.create(&PostParams::default(), &with_renewal(made, now)).await.map_err(what)?
            }
        };
        let data = current.data.unwrap_or_default();
        let [ca, certificate, key] = KEYS.map(|name| data.get(name).map(|value| value.0.clone()).unwrap_or_default());
        // The API server has to trust a certificate before it is used.
        self.announce(&ca).await?;
        for (path, content) in [(&self.files.1, key), (&self.files.0, certificate)] {
            if std::fs::read(path).ok().as_ref() != Some(&content) {
                LocalStorage.write(path, &content).map_err(at_path(path))?;
            }
        }
        Ok(())
    }

    /// Refreshes the certificate from time to time. Never completes.
    pub async fn keep(&self) {
        let mut backoff = Backoff::default();
        loop {
            let wait = match self.refresh(SystemTime::now()).await {
                Ok(()) => {
                    backoff.succeeded();
                    INTERVAL
                }
                Err(error) => {
                    warn!(error, "cannot refresh the certificate");
                    backoff.failed()
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Refreshes the certificate until it succeeds once.
    pub async fn obtain(&self) {
        let mut backoff = Backoff::default();
        while let Err(error) = self.refresh(SystemTime::now()).await {
            warn!(error, "cannot obtain a certificate");
            tokio::time::sleep(backoff.failed()).await;
        }
    }

    /// Writes the CAs into the webhook's configuration.
    async fn announce(&self, ca: &[u8]) -> Result<(), String> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let what = |error: kube::Error| format!("MutatingWebhookConfiguration {}: {}", self.configuration, describe(&error));
        let mut found = configurations.get(&self.configuration).await.map_err(what)?;
        let mut is_changed = false;
        for webhook in found.webhooks.iter_mut().flatten() {
            let bundle = &mut webhook.client_config.ca_bundle;
            is_changed |= bundle.as_ref().is_none_or(|bundle| bundle.0 != ca);
            *bundle = Some(ByteString(ca.to_vec()));
        }
        if is_changed {
            configurations.replace(&self.configuration, &PostParams::default(), &found).await.map_err(what)?;
        }
        Ok(())
    }

    /// Issues a certificate from a new CA. The newest CA of `old` stays trusted.
    fn issue(&self, now: SystemTime, old: Option<&Secret>) -> Result<Secret, String> {
        let failed = |error: rcgen::Error| format!("cannot issue a certificate: {error}");
        let parameters = |hosts: &[String], name: &str| {
            let mut parameters = CertificateParams::new(hosts)?;
            parameters.distinguished_name.push(DnType::CommonName, name);
            parameters.not_before = now.checked_sub(SKEW).unwrap_or(UNIX_EPOCH).into();
            parameters.not_after = now.checked_add(VALIDITY).unwrap_or(now).into();
            Ok(parameters)
        };
        let mut authority = parameters(&[], "vgpu-webhook-ca").map_err(failed)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let authority_key = KeyPair::generate().map_err(failed)?;
        let mut ca = authority.self_signed(&authority_key).map_err(failed)?.pem();
        let mut leaf = parameters(&self.hosts, "vgpu-webhook").map_err(failed)?;
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key)).map_err(failed)?;
        let old = old.and_then(|old| old.data.as_ref()?.get(KEYS[0])).map(|value| String::from_utf8_lossy(&value.0).into_owned());
        if let Some(newest) = old.as_deref().and_then(first_certificate) {
            ca.push_str(newest);
        }
        let values = [ca, certificate.pem(), key.serialize_pem()];
        let data: BTreeMap<_, _> = KEYS.map(str::to_owned).into_iter().zip(values.map(|value| ByteString(value.into_bytes()))).collect();
        Ok(Secret { data: Some(data), type_: Some("kubernetes.io/tls".to_owned()), ..Secret::default() })
    }
}

/// Returns the first certificate of a PEM text.
fn first_certificate(text: &str) -> Option<&str> {
    const END: &str = "-----END CERTIFICATE-----\n";
    text.split_inclusive(END).next().filter(|first| first.ends_with(END))
}

/// Returns the Secret with the time of its renewal.
fn with_renewal(mut secret: Secret, now: SystemTime) -> Secret {
    let at = now.checked_add(RENEWAL).unwrap_or(now).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    secret.metadata.annotations.get_or_insert_default().insert(RENEW_AT.to_owned(), at.to_string());
    secret
}

/// Returns true if a Secret has no certificate, or one to be renewed.
fn is_due(secret: &Secret, now: SystemTime) -> bool {
    let renew_at = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(RENEW_AT)?.parse::<u64>().ok());
    let is_complete = secret.data.as_ref().is_some_and(|data| KEYS.iter().all(|key| data.contains_key(*key)));
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    !is_complete || renew_at.is_none_or(|at| at <= now)
}
