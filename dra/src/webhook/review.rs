//! Answers to AdmissionReviews: what becomes of a pod, and the claim templates that it needs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tracing::{debug, info};
use vgpu_config::error::quoted;

use crate::cluster::describe;
use crate::names::{DEVICE_CLASS, DRIVER, MEMORY, is_dns_label};
use crate::quantity;
use crate::webhook::pod::{self, MutatedPod};
use crate::webhook::{resources, template};

/// Admission webhook.
pub struct Webhook {
    /// Client of the cluster in which templates are created.
    pub client: Client,
    /// RuntimeClass for mutated pods that name none.
    pub runtime_class: Option<String>,
}

impl Webhook {
    /// Returns the response to an AdmissionReview.
    ///
    /// # Errors
    /// The value is not an AdmissionReview.
    pub async fn review(&self, review: &Value) -> Result<Value, &'static str> {
        let request =
            review.get("request").filter(|request| request["uid"].is_string()).ok_or("expected an AdmissionReview with a request")?;
        let namespace = request["namespace"].as_str();
        let pod = ["/object/metadata/name", "/object/metadata/generateName"].iter().find_map(|path| request.pointer(path)?.as_str());
        let response = match self.decide(request).await {
            Ok(None) => json!({ "uid": request["uid"], "allowed": true }),
            Ok(Some(MutatedPod { spec, warnings, .. })) => {
                debug!(namespace, pod, "replaced resources by claims");
                let patch = json!([{ "op": "replace", "path": "/spec", "value": spec }]).to_string();
                let patch = base64(patch.as_bytes());
                json!({ "uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": warnings })
            }
            Err(error) => {
                info!(namespace, pod, error, "refused pod");
                json!({ "uid": request["uid"], "allowed": false, "status": { "code": 422, "reason": "Invalid", "message": error } })
            }
        };
        Ok(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
    }

    /// Returns what becomes of the request's pod, or `None` to leave it unchanged.
    async fn decide(&self, request: &Value) -> Result<Option<MutatedPod>, String> {
        let object = &request["object"];
        if request["operation"] != "CREATE" || object["kind"] != "Pod" {
            return Ok(None);
        }
        let sizes = if pod::needs_gpu_sizes(object) { self.gpu_sizes().await? } else { BTreeSet::new() };
        let Some(mutated) = pod::mutate(object, &sizes, self.runtime_class.as_deref())? else { return Ok(None) };
        let namespace = request["namespace"].as_str().unwrap_or_default();
        // It becomes part of URLs, in which the client does not escape it.
        if !is_dns_label(namespace) {
            return Err(format!("request.namespace: \"{}\": expected a DNS label", quoted(namespace)));
        }
        self.check_quotas(namespace).await?;
        if request["dryRun"] != true {
            let templates = Api::namespaced(self.client.clone(), namespace);
            for template in &mutated.templates {
                ensure_template(&templates, namespace, template).await?;
            }
        }
        Ok(Some(mutated))
    }

    /// Refuses namespaces with a quota of the resources that claims replace: their pods would not count, and so exceed it in silence.
    async fn check_quotas(&self, namespace: &str) -> Result<(), String> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.client.clone(), namespace);
        let listed = quotas
            .list(&ListParams::default())
            .await
            .map_err(|error| format!("cannot list ResourceQuotas of namespace {namespace}: {}", describe(&error)))?;
        for quota in listed.items {
            let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
            if let Some(key) = hard.keys().find(|key| resources::is_quota_of_hami(key)) {
                let name = quota.metadata.name.unwrap_or_default();
                return Err(format!(
                    "ResourceQuota {namespace}/{name}: {key}: pods with claims do not count towards it: expected \
                     {DEVICE_CLASS}.deviceclass.resource.k8s.io/devices or count/resourceclaims.resource.k8s.io"
                ));
            }
        }
        Ok(())
    }

    /// Returns the memory sizes of the cluster's whole GPUs, in bytes.
    async fn gpu_sizes(&self) -> Result<BTreeSet<u64>, String> {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let selector = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        let listed =
            slices.list(&selector).await.map_err(|error| format!("cannot list ResourceSlices for GPU memory: {}", describe(&error)))?;
        let devices = listed.items.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
        let whole = devices.filter(|device| {
            let kind = device.attributes.as_ref().and_then(|attributes| attributes.get("type")?.string.as_deref());
            kind == Some("gpu")
        });
        Ok(whole.filter_map(|device| quantity::parse(&device.capacity?.get(MEMORY)?.value.0)).collect())
    }
}

/// Creates a template unless it exists. One that exists must be as the webhook would create it, because anybody who may create templates
/// in the namespace can choose its name.
async fn ensure_template(templates: &Api<ResourceClaimTemplate>, namespace: &str, template: &Value) -> Result<(), String> {
    let wanted: ResourceClaimTemplate = serde_json::from_value(template.clone()).map_err(|error| error.to_string())?;
    let name = wanted.metadata.name.as_deref().unwrap_or_default();
    match templates.create(&PostParams::default(), &wanted).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(format!("cannot create ResourceClaimTemplate {namespace}/{name}: {}", describe(&error))),
    }
    let found = templates.get(name).await.map_err(|error| format!("ResourceClaimTemplate {namespace}/{name}: {}", describe(&error)))?;
    if template::is_as_created(&found, &wanted) {
        return Ok(());
    }
    Err(format!(
        "ResourceClaimTemplate {namespace}/{name}: was not created by vgpu-webhook or is being deleted: expected none of this name, or one \
         with the specification of this pod's request (delete it, and create the pod again)"
    ))
}

/// Encodes a JSON patch for an AdmissionReview.
fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
