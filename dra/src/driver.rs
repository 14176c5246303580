//! Preparing and unpreparing claims.
//!
//! The order of the steps makes crashes harmless. A claim is in the checkpoint before its first file exists and until its last file is
//! gone, and every file of the checkpoint's claims is rewritten at start. The kubelet repeats requests that were not answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{Mutex, MutexGuard, RwLock};
use tracing::{debug, info, warn};

use crate::cdi;
use crate::checkpoint::{Checkpoint, Lock, PreparedClaims, PreparedEntry};
use crate::claim::{Grant, grants};
use crate::cluster::describe;
use crate::devices::{self, LocalDevice};
use crate::names::{is_dns_label, is_dns_subdomain};
use crate::proto;
use crate::storage::{Storage, at_path};

/// Devices that are present now, by name.
pub type PresentDevices = RwLock<BTreeMap<String, LocalDevice>>;

/// Prepared claims of the node, and the files that they need.
pub struct Driver {
    node: String,
    client: Client,
    cdi: cdi::Config,
    checkpoint: Checkpoint,
    storage: Arc<dyn Storage>,
    present: PresentDevices,
    /// Claims of the checkpoint when it was last read. The checkpoint is what counts, as another instance may change it.
    claims: Mutex<PreparedClaims>,
}

/// Claims of the checkpoint while no other task and no other instance can change them.
struct Claims<'a> {
    known: MutexGuard<'a, PreparedClaims>,
    _lock: Lock,
}

impl Driver {
    /// Returns a driver with the claims of the checkpoint. Files are written by [`Driver::restore`] only.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub fn new(node: String, client: Client, cdi: cdi::Config, checkpoint: Checkpoint, storage: Arc<dyn Storage>) -> Result<Self, String> {
        let claims = Mutex::new(checkpoint.load()?);
        Ok(Self { node, client, cdi, checkpoint, storage, present: PresentDevices::default(), claims })
    }

    /// Rewrites the files of all prepared claims, as `/run` is empty after a reboot. A claim whose files cannot be written is skipped, and
    /// tried again when the kubelet prepares it.
    ///
    /// # Errors
    /// The specification with the hook cannot be written, or the checkpoint cannot be read.
    pub async fn restore(&self) -> Result<(), String> {
        match self.cdi.hook_spec() {
            Some((path, text)) => self.storage.write(&path, &text).map_err(at_path(&path))?,
            None => self.storage.remove(&self.cdi.hook_spec_path()).map_err(at_path(&self.cdi.hook_spec_path()))?,
        }
        let claims = self.lock().await?;
        self.checkpoint.remove_temporary();
        for (uid, entry) in claims.known.iter() {
            // The others must not wait for a claim whose device has vanished.
            match self.write_files(uid, entry) {
                Ok(()) => debug!(claim = %entry, uid, "restored claim"),
                Err(error) => warn!(claim = %entry, uid, error, "claim not restored"),
            }
        }
        Ok(())
    }

    /// Takes the lock of the checkpoint, and reads it.
    async fn lock(&self) -> Result<Claims<'_>, String> {
        let mut known = self.claims.lock().await;
        let lock = self.checkpoint.lock().await?;
        *known = self.checkpoint.load()?;
        Ok(Claims { known, _lock: lock })
    }

    /// Returns the claims of the checkpoint, or those that were last read if it cannot be read now.
    async fn known(&self) -> PreparedClaims {
        let mut known = self.claims.lock().await;
        if let Ok(claims) = self.checkpoint.load() {
            *known = claims;
        }
        known.clone()
    }

    /// Unprepares claims that no longer exist in the cluster. The kubelet does not do so if it lost its own state, for example because the
    /// node was recreated.
    ///
    /// # Errors
    /// The API server does not answer, or a file cannot be removed.
    pub async fn unprepare_deleted(&self) -> Result<(), String> {
        for (uid, entry) in self.known().await {
            let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &entry.namespace);
            let found = claims.get_opt(&entry.name).await.map_err(|error| format!("claim {entry}: {}", describe(&error)))?;
            if found.is_none_or(|found| found.metadata.uid.as_ref() != Some(&uid)) {
                self.unprepare(&uid).await?;
                info!(claim = %entry, uid, "unprepared claim that no longer exists");
            }
        }
        Ok(())
    }

    /// Sets the devices that are present now.
    pub async fn set_present(&self, devices: BTreeMap<String, LocalDevice>) {
        *self.present.write().await = devices;
    }

    /// Returns the names of the devices that prepared claims use.
    pub async fn devices_in_use(&self) -> Vec<String> {
        self.known().await.values().flat_map(|entry| entry.grants.iter().map(|grant| grant.device.clone())).collect()
    }

    /// Returns the number of prepared claims.
    pub async fn claim_count(&self) -> usize {
        self.known().await.len()
    }

    /// Prepares a claim and returns its devices. Idempotent: the kubelet repeats it when a pod starts after a restart.
    ///
    /// # Errors
    /// The claim is not allocated to devices that are present, or a file cannot be written.
    pub async fn prepare(&self, claim: &proto::Claim) -> Result<Vec<proto::Device>, String> {
        // The UID becomes part of file names.
        if claim.uid.is_empty() || !claim.uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(format!("claim UID: {:?}: expected letters, digits and hyphens", claim.uid));
        }
        // They become parts of URLs, in which the client does not escape them.
        if !is_dns_label(&claim.namespace) || !is_dns_subdomain(&claim.name) {
            return Err(format!(
                "claim {:?}/{:?}: expected a namespace that is a DNS label, and a DNS subdomain",
                claim.namespace, claim.name
            ));
        }
        let entry = match self.known().await.remove(&claim.uid) {
            Some(entry) => entry,
            None => self.fetch_entry(claim).await?,
        };
        {
            let present = self.present.read().await;
            if let Some(gone) = entry.grants.iter().find(|grant| !present.contains_key(&grant.device)) {
                return Err(devices::not_present(&gone.device));
            }
        }
        let mut claims = self.lock().await?;
        if claims.known.get(&claim.uid) != Some(&entry) {
            let mut next = claims.known.clone();
            next.insert(claim.uid.clone(), entry.clone());
            self.checkpoint.save(&*self.storage, &next)?;
            *claims.known = next;
        }
        self.write_files(&claim.uid, &entry)?;
        Ok(entry.grants.iter().enumerate().map(|(index, grant)| self.proto_device(&claim.uid, index, grant)).collect())
    }

    /// Returns the record of a claim that the API server has allocated.
    async fn fetch_entry(&self, claim: &proto::Claim) -> Result<PreparedEntry, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get(&claim.name).await.map_err(|error| describe(&error))?;
        if found.metadata.uid.as_deref() != Some(&claim.uid) {
            let uid = found.metadata.uid.unwrap_or_default();
            return Err(format!("claim UID: {uid:?}: expected {:?}: the claim was recreated", claim.uid));
        }
        let present = self.present.read().await;
        let grants = grants(&found, &self.node, |device| present.get(device))?;
        Ok(PreparedEntry { namespace: claim.namespace.clone(), name: claim.name.clone(), grants })
    }

    /// Writes the files of a claim.
    fn write_files(&self, uid: &str, entry: &PreparedEntry) -> Result<(), String> {
        for (path, text) in self.cdi.claim_files(uid, &entry.to_string(), &entry.grants)? {
            self.storage.write(&path, &text).map_err(at_path(&path))?;
        }
        Ok(())
    }

    /// Returns a share in the form that the kubelet expects.
    fn proto_device(&self, uid: &str, index: usize, grant: &Grant) -> proto::Device {
        proto::Device {
            request_names: vec![grant.request.clone()],
            pool_name: grant.pool.clone(),
            device_name: grant.device.clone(),
            cdi_device_ids: self.cdi.device_ids(uid, index, grant),
            share_id: grant.share.clone(),
        }
    }

    /// Removes a claim's files and its record. Does nothing for an unknown claim.
    ///
    /// # Errors
    /// A file cannot be removed, or the checkpoint cannot be written.
    pub async fn unprepare(&self, uid: &str) -> Result<(), String> {
        let mut claims = self.lock().await?;
        let Some(entry) = claims.known.get(uid) else { return Ok(()) };
        // The specification goes first, as it refers to the share files.
        let shares = (0..entry.grants.len()).map(|index| self.cdi.share_path(uid, index));
        for path in std::iter::once(self.cdi.claim_spec_path(uid)).chain(shares) {
            self.storage.remove(&path).map_err(at_path(&path))?;
        }
        let mut next = claims.known.clone();
        next.remove(uid);
        self.checkpoint.save(&*self.storage, &next)?;
        *claims.known = next;
        Ok(())
    }
}
