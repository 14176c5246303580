//! Reading and checking of manifests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::schemas::{Schemas, VERSIONS};

pub fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

/// Returns the objects of a YAML file. Duplicate keys are an error.
pub fn objects(name: &str, text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
    all.into_iter().filter(|object| !object.is_null()).collect()
}

pub fn files(folder: &str) -> Vec<(String, Vec<Value>)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(packaging(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.display().to_string();
        let objects = objects(&name, &std::fs::read_to_string(path).unwrap());
        (name, objects)
    };
    paths.into_iter().map(read).collect()
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the pod specification of a pod or of an object that creates pods.
pub fn pod(object: &Value) -> Option<&Value> {
    match text(object, "/kind") {
        "Pod" => object.get("spec"),
        _ => object.pointer("/spec/template/spec").filter(|spec| spec.get("containers").is_some()),
    }
}

/// Kinds of other projects, for which there are no schemas.
const FOREIGN: [&str; 5] = ["ServiceMonitor", "PodMonitor", "PrometheusRule", "Issuer", "Certificate"];

pub fn check_schemas(name: &str, objects: &[Value]) {
    for version in VERSIONS {
        let schemas = Schemas::of(version);
        for object in objects {
            let kind = text(object, "/kind");
            if FOREIGN.contains(&kind) || kind == "Secret" {
                continue;
            }
            let problems = schemas.problems(kind, object).unwrap_or_else(|| panic!("{name}: no schema of kind {kind}"));
            assert_eq!(problems, [] as [String; 0], "{name}, {kind} {}, {version}", text(object, "/metadata/name"));
        }
    }
}

pub fn names<'a>(objects: &'a [Value], kind: &str) -> BTreeSet<&'a str> {
    objects.iter().filter(|object| text(object, "/kind") == kind).map(|object| text(object, "/metadata/name")).collect()
}

/// Checks that every name that a pod refers to exists in the pod or in `objects`.
pub fn check_pod(name: &str, spec: &Value, objects: &[Value]) {
    let named = |pointer: &str| list(spec, pointer).iter().map(|entry| text(entry, "/name")).collect::<BTreeSet<_>>();
    let (volumes, claims) = (named("/volumes"), named("/resourceClaims"));
    for container in list(spec, "/containers").iter().chain(list(spec, "/initContainers")) {
        for mount in list(container, "/volumeMounts") {
            assert!(volumes.contains(text(mount, "/name")), "{name}: {mount}");
        }
        for claim in list(container, "/resources/claims") {
            assert!(claims.contains(text(claim, "/name")), "{name}: {claim}");
            check_container_claim(name, spec, claim, objects);
        }
        for probe in ["/readinessProbe/httpGet/port", "/livenessProbe/httpGet/port"] {
            let port = text(container, probe);
            assert!(port.is_empty() || list(container, "/ports").iter().any(|known| text(known, "/name") == port), "{name}: {port}");
        }
    }
    for volume in list(spec, "/volumes") {
        let secret = text(volume, "/secret/secretName");
        let is_created = names(objects, "Secret").contains(secret)
            || objects.iter().any(|object| text(object, "/kind") == "Certificate" && text(object, "/spec/secretName") == secret);
        assert!(secret.is_empty() || is_created || secret == "given", "{name}: secret {secret}");
    }
    let account = text(spec, "/serviceAccountName");
    assert!(account.is_empty() || names(objects, "ServiceAccount").contains(account), "{name}: service account {account}");
    let class = text(spec, "/runtimeClassName");
    assert!(class.is_empty() || class == "vgpu", "{name}: {class}");
}

/// Checks that the template of a container's claim exists, and has the request that the container names.
fn check_container_claim(name: &str, spec: &Value, claim: &Value, objects: &[Value]) {
    let of_pod = list(spec, "/resourceClaims").iter().find(|known| known["name"] == claim["name"]).unwrap();
    let template = objects.iter().find(|object| {
        text(object, "/kind") == "ResourceClaimTemplate" && object["metadata"]["name"] == of_pod["resourceClaimTemplateName"]
    });
    let template = template.unwrap_or_else(|| panic!("{name}: no template {of_pod}"));
    let request = text(claim, "/request");
    assert!(
        request.is_empty() || list(template, "/spec/spec/devices/requests").iter().any(|known| text(known, "/name") == request),
        "{name}: {claim}"
    );
}

/// Checks that the requests of a claim name existing classes, and its constraints existing requests.
pub fn check_claim(name: &str, devices: &Value, classes: &BTreeSet<&str>) {
    let requests = list(devices, "/requests");
    for request in requests {
        let alternatives = list(request, "/firstAvailable").iter().chain(request.get("exactly"));
        for exactly in alternatives {
            assert!(classes.contains(text(exactly, "/deviceClassName")), "{name}: {exactly}");
            for (capacity, amount) in exactly.pointer("/capacity/requests").and_then(Value::as_object).into_iter().flatten() {
                assert!(["memory", "cores"].contains(&capacity.as_str()), "{name}: {capacity}");
                assert!(vgpu_dra::quantity::parse(amount.as_str().unwrap()).is_some(), "{name}: {amount}");
            }
        }
    }
    for constraint in list(devices, "/constraints") {
        for request in list(constraint, "/requests") {
            assert!(requests.iter().any(|known| known["name"] == *request), "{name}: {request}");
        }
        // The scheduler never gives one device twice to one request, so several devices of a request cannot have the same UUID.
        let constrained: Vec<&Value> = requests.iter().filter(|known| list(constraint, "/requests").contains(&known["name"])).collect();
        let has_several = constrained.iter().any(|known| known.pointer("/exactly/count").and_then(Value::as_u64).unwrap_or(1) > 1);
        assert!(!has_several || text(constraint, "/matchAttribute").is_empty(), "{name}: {constraint} cannot be satisfied");
        let attribute = [text(constraint, "/matchAttribute"), text(constraint, "/distinctAttribute")].concat();
        assert_eq!(attribute, "gpu.vgpu/uuid", "{name}");
    }
}
