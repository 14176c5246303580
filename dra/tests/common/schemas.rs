//! Kubernetes' published schemas.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Kubernetes versions with schemas, oldest first.
pub const VERSIONS: [&str; 3] = ["v1.34", "v1.35", "v1.36"];

/// Schemas of one version.
pub struct Schemas(Value);

impl Schemas {
    /// Reads the schemas of a version: its file on top of those of earlier versions.
    pub fn of(version: &str) -> Self {
        let mut all = json!({ "definitions": {}, "kinds": {} });
        for known in VERSIONS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/schemas/{known}.json"));
            let next: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            for part in ["definitions", "kinds"] {
                all[part].as_object_mut().unwrap().extend(next[part].as_object().unwrap().clone());
            }
            if known == version {
                return Self(all);
            }
        }
        panic!("schemas of {version}: expected one of {VERSIONS:?}");
    }

    /// Returns the schema violations of an object, or `None` if its kind has no schema.
    pub fn problems(&self, kind: &str, object: &Value) -> Option<Vec<String>> {
        match kind {
            "ValidatingAdmissionPolicy" => return Some(typed_problems::<ValidatingAdmissionPolicy>(object)),
            "ValidatingAdmissionPolicyBinding" => return Some(typed_problems::<ValidatingAdmissionPolicyBinding>(object)),
            "Secret" => return Some(typed_problems::<Secret>(object)),
            "Role" => return Some(typed_problems::<Role>(object)),
            "RoleBinding" => return Some(typed_problems::<RoleBinding>(object)),
            "NetworkPolicy" => return Some(typed_problems::<NetworkPolicy>(object)),
            "PodDisruptionBudget" => return Some(typed_problems::<PodDisruptionBudget>(object)),
            _ => {}
        }
        self.0["kinds"].get(kind)?;
        let mut schema = self.0.clone();
        schema["$ref"] = json!(format!("#/kinds/{kind}"));
        let validator = jsonschema::draft7::new(&schema).unwrap();
        Some(validator.iter_errors(object).map(|error| format!("{}: {error}", error.instance_path())).collect())
    }
}

/// Returns what the types of `k8s-openapi` do not know of an object whose kind the schemas do not have.
fn typed_problems<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(object.clone()).map(|typed| serde_json::to_value(typed).unwrap()) {
        Ok(known) if known == *object => Vec::new(),
        Ok(known) => vec![format!("unknown fields: {object}: expected {known}")],
        Err(error) => vec![error.to_string()],
    }
}
