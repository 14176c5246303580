//! Preparing claims, and the reverse.
//!
//! The order is what makes a crash harmless: a claim is in the checkpoint before its first file is there, and until its last file is
//! gone. After a start, everything in the checkpoint is written again. The kubelet asks again for what it got no answer to.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{Mutex, RwLock};

use crate::cdi;
use crate::checkpoint::{Checkpoint, PreparedClaims, PreparedEntry};
use crate::claim::{Grant, grants};
use crate::cluster::describe;
use crate::devices::LocalDevice;
use crate::proto;
use crate::storage::{Storage, at_path};

/// The devices that are there now, by name.
pub type PresentDevices = RwLock<BTreeMap<String, LocalDevice>>;

/// The kubelet plugin's part that holds claims.
pub struct Driver {
    node: String,
    client: Client,
    cdi: cdi::Config,
    checkpoint: Checkpoint,
    storage: Arc<dyn Storage>,
    present: PresentDevices,
    claims: Mutex<PreparedClaims>,
}

impl Driver {
    /// Takes up what the checkpoint says. Nothing is written before [`Driver::restore`].
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub fn new(node: String, client: Client, cdi: cdi::Config, checkpoint: Checkpoint, storage: Arc<dyn Storage>) -> Result<Self, String> {
        let claims = Mutex::new(checkpoint.load()?);
        checkpoint.remove_temporary();
        Ok(Self { node, client, cdi, checkpoint, storage, present: PresentDevices::default(), claims })
    }

    /// Writes everything again that is on record, as `/run` is empty after a reboot.
    ///
    /// # Errors
    /// A file cannot be written.
    pub async fn restore(&self) -> Result<(), String> {
        match self.cdi.hook_spec() {
            Some((path, text)) => self.storage.write(&path, &text).map_err(at_path(&path))?,
            None => self.storage.remove(&self.cdi.hook_spec_path()).map_err(at_path(&self.cdi.hook_spec_path()))?,
        }
        for (uid, entry) in self.claims.lock().await.iter() {
            self.write_files(uid, entry)?;
        }
        Ok(())
    }

    /// Lets go of claims that the cluster does not know any more and that the kubelet has forgotten about, as after a node was made anew.
    ///
    /// # Errors
    /// The API server does not answer, or a file cannot be removed.
    pub async fn unprepare_deleted(&self) -> Result<(), String> {
        let known: Vec<_> = self.claims.lock().await.iter().map(|(uid, entry)| (uid.clone(), entry.clone())).collect();
        for (uid, entry) in known {
            let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &entry.namespace);
            let found = claims
                .get_opt(&entry.name)
                .await
                .map_err(|error| format!("claim {}/{}: {}", entry.namespace, entry.name, describe(&error)))?;
            if found.is_none_or(|found| found.metadata.uid.as_ref() != Some(&uid)) {
                self.unprepare(&uid).await?;
            }
        }
        Ok(())
    }

    /// Says which devices are there now.
    pub async fn set_present(&self, devices: BTreeMap<String, LocalDevice>) {
        *self.present.write().await = devices;
    }

    /// The devices of which there are shares in prepared claims.
    pub async fn devices_in_use(&self) -> Vec<String> {
        let claims = self.claims.lock().await;
        claims.values().flat_map(|entry| entry.grants.iter().map(|grant| grant.device.clone())).collect()
    }

    /// Prepares one claim. It is asked for again whenever a pod starts after a restart, and the answer is the same.
    pub async fn prepare(&self, claim: &proto::Claim) -> Result<Vec<proto::Device>, String> {
        // Names of files are made of it.
        if claim.uid.is_empty() || !claim.uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err("its UID is none".to_owned());
        }
        let known = self.claims.lock().await.get(&claim.uid).cloned();
        let entry = match known {
            Some(entry) => entry,
            None => self.fetch_entry(claim).await?,
        };
        {
            let present = self.present.read().await;
            if let Some(gone) = entry.grants.iter().find(|grant| !present.contains_key(&grant.device)) {
                return Err(format!("it was given {}, which is not there or does not work", gone.device));
            }
        }
        let mut claims = self.claims.lock().await;
        if claims.get(&claim.uid) != Some(&entry) {
            let mut next = claims.clone();
            next.insert(claim.uid.clone(), entry.clone());
            self.checkpoint.save(&*self.storage, &next)?;
            *claims = next;
        }
        self.write_files(&claim.uid, &entry)?;
        Ok(entry.grants.iter().enumerate().map(|(nth, grant)| self.device(&claim.uid, nth, grant)).collect())
    }

    async fn fetch_entry(&self, asked: &proto::Claim) -> Result<PreparedEntry, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &asked.namespace);
        let found = claims.get(&asked.name).await.map_err(|error| describe(&error))?;
        if found.metadata.uid.as_deref() != Some(&asked.uid) {
            return Err("the claim of this name is another one by now".to_owned());
        }
        let present = self.present.read().await;
        let grants = grants(&found, &self.node, |device| present.get(device))?;
        Ok(PreparedEntry { namespace: asked.namespace.clone(), name: asked.name.clone(), grants })
    }

    fn write_files(&self, uid: &str, entry: &PreparedEntry) -> Result<(), String> {
        for (path, text) in self.cdi.claim_files(uid, &format!("{}/{}", entry.namespace, entry.name), &entry.grants)? {
            self.storage.write(&path, &text).map_err(at_path(&path))?;
        }
        Ok(())
    }

    fn device(&self, uid: &str, nth: usize, grant: &Grant) -> proto::Device {
        proto::Device {
            request_names: vec![grant.request.clone()],
            pool_name: grant.pool.clone(),
            device_name: grant.device.clone(),
            cdi_device_ids: self.cdi.device_ids(uid, nth, grant),
            share_id: grant.share.clone(),
        }
    }

    /// Undoes what was prepared for a claim; one that is not known is done already.
    pub async fn unprepare(&self, uid: &str) -> Result<(), String> {
        let mut claims = self.claims.lock().await;
        let Some(entry) = claims.get(uid) else { return Ok(()) };
        // What refers to the others first.
        let shares = (0..entry.grants.len()).map(|nth| self.cdi.share_path(uid, nth));
        for path in std::iter::once(self.cdi.claim_spec_path(uid)).chain(shares) {
            self.storage.remove(&path).map_err(at_path(&path))?;
        }
        let mut next = claims.clone();
        next.remove(uid);
        self.checkpoint.save(&*self.storage, &next)?;
        *claims = next;
        Ok(())
    }
}
