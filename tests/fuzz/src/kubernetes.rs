//! What the Kubernetes API hands to the webhook and to the DRA driver.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use vgpu_dra::webhook::pod;
use vgpu_dra::{claim as claims, quantity};

/// Rewrites a pod, and reads the text as a quantity. Asserts that a rewritten pod has nothing left to rewrite.
pub fn webhook(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(bytes) = quantity::parse_exact(text) {
        assert!(quantity::parse(text).is_some_and(|rounded| rounded >= bytes), "{text}: {bytes}");
    }
    let Ok(pod) = serde_json::from_str::<Value>(text) else { return };
    let _ = pod::needs_gpu_sizes(&pod);
    let sizes = BTreeSet::from([1_u64 << 34, 80 << 30]);
    if let Ok(Some(mutated)) = pod::mutate(&pod, &sizes, Some("vgpu")) {
        let mut rewritten = pod.clone();
        rewritten["spec"] = mutated.spec;
        assert_eq!(pod::mutate(&rewritten, &sizes, Some("vgpu")), Ok(None), "a second run changes something");
    }
}

/// Reads an allocated claim.
pub fn claim(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    // The type's own parser decides what is a claim; texts that are only its results get the rest around them.
    let results = json!({ "metadata": {}, "spec": {}, "status": { "allocation": { "devices": { "results": value.clone() } } } });
    for value in [value, results] {
        let Ok(claim) = serde_json::from_value::<ResourceClaim>(value) else { continue };
        let _ = claims::grants(&claim, "node", |_| None);
    }
}
