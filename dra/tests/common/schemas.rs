//! Kubernetes' published schemas.

use std::path::Path;

use serde_json::{Value, json};

/// The versions that there are schemas of.
pub const VERSIONS: [&str; 3] = ["v1.34", "v1.35", "v1.36"];

/// The schemas of one version.
pub struct Schemas(Value);

impl Schemas {
    /// Reads them: each version's on top of those before.
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
        panic!("no schemas of {version}");
    }

    /// What is wrong with an object of a kind; empty if nothing is. `None`: no such kind is known.
    pub fn problems(&self, kind: &str, object: &Value) -> Option<Vec<String>> {
        self.0["kinds"].get(kind)?;
        let mut schema = self.0.clone();
        schema["$ref"] = json!(format!("#/kinds/{kind}"));
        let validator = jsonschema::draft7::new(&schema).unwrap();
        Some(validator.iter_errors(object).map(|error| format!("{}: {error}", error.instance_path())).collect())
    }
}
