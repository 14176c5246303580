//! The manifests and the chart: valid for every version that they are for, and every name in them is one that exists.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use common::schemas::{Schemas, VERSIONS};
use serde_json::{Value, json};
use vgpu_dra::options::Options;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

/// The objects of a YAML file. A key that is there twice is an error.
fn objects(name: &str, text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn files(folder: &str) -> Vec<(String, Vec<Value>)> {
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

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The specification of a pod in an object that makes pods, or is one.
fn pod(object: &Value) -> Option<&Value> {
    match text(object, "/kind") {
        "Pod" => object.get("spec"),
        _ => object.pointer("/spec/template/spec").filter(|spec| spec.get("containers").is_some()),
    }
}

/// Kinds of others, of which there are no schemas here.
const FOREIGN: [&str; 3] = ["ServiceMonitor", "Issuer", "Certificate"];

fn check_schemas(name: &str, objects: &[Value]) {
    for version in VERSIONS {
        let schemas = Schemas::of(version);
        for object in objects {
            let kind = text(object, "/kind");
            if FOREIGN.contains(&kind) || kind == "Secret" {
                continue;
            }
            let problems = schemas.problems(kind, object).unwrap_or_else(|| panic!("{name}: no schema of {kind}"));
            assert_eq!(problems, [] as [String; 0], "{name}, {kind} {}, {version}", text(object, "/metadata/name"));
        }
    }
}

fn names<'a>(objects: &'a [Value], kind: &str) -> BTreeSet<&'a str> {
    objects.iter().filter(|object| text(object, "/kind") == kind).map(|object| text(object, "/metadata/name")).collect()
}

/// Each name that a pod refers to is one in the pod or among `objects`.
fn check_pod(name: &str, spec: &Value, objects: &[Value]) {
    let named = |pointer: &str| list(spec, pointer).iter().map(|entry| text(entry, "/name")).collect::<BTreeSet<_>>();
    let (volumes, claims) = (named("/volumes"), named("/resourceClaims"));
    for container in list(spec, "/containers").iter().chain(list(spec, "/initContainers")) {
        for mount in list(container, "/volumeMounts") {
            assert!(volumes.contains(text(mount, "/name")), "{name}: {mount}");
        }
        for claim in list(container, "/resources/claims") {
            assert!(claims.contains(text(claim, "/name")), "{name}: {claim}");
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
        for probe in ["/readinessProbe/httpGet/port", "/livenessProbe/httpGet/port"] {
            let port = text(container, probe);
            assert!(port.is_empty() || list(container, "/ports").iter().any(|known| text(known, "/name") == port), "{name}: {port}");
        }
    }
    for volume in list(spec, "/volumes") {
        let secret = text(volume, "/secret/secretName");
        let made = names(objects, "Secret").contains(secret)
            || objects.iter().any(|object| text(object, "/kind") == "Certificate" && text(object, "/spec/secretName") == secret);
        assert!(secret.is_empty() || made || secret == "given", "{name}: the secret {secret}");
    }
    let account = text(spec, "/serviceAccountName");
    assert!(account.is_empty() || names(objects, "ServiceAccount").contains(account), "{name}: the account {account}");
    let class = text(spec, "/runtimeClassName");
    assert!(class.is_empty() || class == "vgpu", "{name}: {class}");
}

/// The requests of claims are for classes that exist, and their constraints for requests that exist.
fn check_claim(name: &str, devices: &Value, classes: &BTreeSet<&str>) {
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
        let attribute = [text(constraint, "/matchAttribute"), text(constraint, "/distinctAttribute")].concat();
        assert_eq!(attribute, "gpu.vgpu/uuid", "{name}");
    }
}

#[test]
fn manifests_are_valid_and_name_what_exists() {
    let own = files("kubernetes");
    let classes: Vec<Value> =
        own.iter().flat_map(|(_, objects)| objects.clone()).filter(|object| text(object, "/kind") == "DeviceClass").collect();
    let classes = names(&classes, "DeviceClass");
    assert_eq!(classes, ["gpu.vgpu", "mig.vgpu"].into());
    let claims = files("kubernetes/claims");
    assert!(claims.len() >= 7);
    for (name, objects) in own.iter().chain(&claims) {
        check_schemas(name, objects);
        for object in objects {
            if let Some(spec) = pod(object) {
                check_pod(name, spec, objects);
            }
            let devices = match text(object, "/kind") {
                "ResourceClaim" => object.pointer("/spec/devices"),
                "ResourceClaimTemplate" => object.pointer("/spec/spec/devices"),
                _ => None,
            };
            if let Some(devices) = devices {
                check_claim(name, devices, &classes);
            }
        }
    }
}

#[test]
fn what_the_webhook_makes_of_hamis_manifest_is_valid() {
    let (name, objects) = files("kubernetes/claims").into_iter().find(|(name, _)| name.ends_with("hami-by-webhook.yaml")).unwrap();
    for percent in [false, true] {
        let mut pod = objects[0].clone();
        if percent {
            let limits = pod["spec"]["containers"][0]["resources"]["limits"].as_object_mut().unwrap();
            limits.remove("nvidia.com/gpumem");
            limits.insert("nvidia.com/gpumem-percentage".to_owned(), json!(25));
            limits.insert("nvidia.com/gpu".to_owned(), json!(2));
        }
        let changed = vgpu_dra::webhook::pod::change(&pod, &[24 << 30, 80 << 30].into(), Some("vgpu")).unwrap().unwrap();
        pod["spec"] = changed.spec;
        let mut all = changed.templates.clone();
        all.push(pod.clone());
        check_schemas(&name, &all);
        check_pod(&name, &pod["spec"], &all);
        check_claim(&name, &changed.templates[0]["spec"]["spec"]["devices"], &["gpu.vgpu"].into());
    }
}

/// Helm's own library, as a Python package; `None` if it is not there.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("VGPU_TEST_HELM").map(PathBuf::from);
    let found = named.into_iter().chain(["python3".into()]).find(|python| {
        let import = Command::new(python).args(["-c", "import helm_python"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    });
    if found.is_none() {
        eprintln!(
            "SKIPPED: this test renders the chart by Helm's library, and needs the Python package helm-python-sdk (VGPU_TEST_HELM names a Python that has it)"
        );
    }
    found
}

/// Lints and renders the chart with each of these values.
fn render(python: &Path, values: &Value) -> Vec<Value> {
    let mut child = Command::new(python)
        .arg(packaging("helm/render.py"))
        .arg(packaging("helm/vgpu"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(values.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_chart_is_clean_and_every_name_in_it_exists() {
    let Some(python) = python() else { return };
    let webhook = |mode: &str| json!({ "enabled": true, "tls": { "mode": mode, "secretName": "given", "caBundle": "Q0E=" } });
    let values = json!([
        {},
        { "webhook": webhook("helm"), "monitor": { "serviceMonitor": { "enabled": true, "labels": { "a": "b" } }, "dashboard": { "enabled": true } } },
        { "webhook": webhook("cert-manager"), "dra": { "devices": "nodes", "mounts": ["/home/driver:/usr/local/nvidia"], "hooks": false } },
        { "webhook": webhook("secret"), "install": { "enabled": false }, "nodeSelector": {}, "tolerations": [] },
        { "install": { "uninstall": true } },
        { "dra": { "enabled": false }, "monitor": { "enabled": false } },
        { "runtimeClass": { "enabled": false }, "deviceClasses": { "enabled": false }, "install": { "runtime": "crio", "restart": false } },
    ]);
    for (nth, result) in render(&python, &values).into_iter().enumerate() {
        let case = format!("values {}", values[nth]);
        assert_eq!(result["error"], Value::Null, "{case}");
        assert_eq!(result["lint"], json!([]), "{case}");
        let rendered = result["rendered"].as_object().unwrap();
        let manifests = rendered.iter().filter(|(name, _)| name.ends_with(".yaml"));
        let all: Vec<Value> = manifests.flat_map(|(name, text)| objects(name, text.as_str().unwrap())).collect();
        check_schemas(&case, &all);
        check_chart(&case, &all);
    }
    let refused = json!([{ "dra": { "every": 0 } }, { "unknown": 1 }, { "install": { "runtime": "docker" } }, { "webhook": { "enabled": true, "tls": { "mode": "secret" } } }]);
    for result in render(&python, &refused) {
        assert!(result["error"].is_string() || result["lint"] != json!([]), "{result}");
    }
}

fn labels_match(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().cloned().unwrap_or_default();
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn check_chart(case: &str, all: &[Value]) {
    let staged = std::fs::read_to_string(packaging("build.sh")).unwrap();
    for object in all {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        assert!(name.starts_with("vgpu") || name.ends_with(".vgpu"), "{case}: {kind} {name}");
        if let Some(spec) = pod(object) {
            check_pod(case, spec, all);
            assert!(
                labels_match(&object["spec"]["selector"]["matchLabels"], &object["spec"]["template"]["metadata"]["labels"]),
                "{case}: {name}"
            );
            for container in list(spec, "/containers") {
                for program in list(container, "/command") {
                    check_program(program.as_str().unwrap(), &staged);
                }
                check_arguments(container);
            }
        }
        if kind == "ClusterRoleBinding" {
            assert!(names(all, "ClusterRole").contains(text(object, "/roleRef/name")), "{case}: {name}");
            assert!(names(all, "ServiceAccount").contains(text(object, "/subjects/0/name")), "{case}: {name}");
        }
        if kind == "Service" {
            let target = all
                .iter()
                .filter(|other| pod(other).is_some())
                .find(|other| labels_match(&object["spec"]["selector"], &other["spec"]["template"]["metadata"]["labels"]));
            let target = pod(target.unwrap_or_else(|| panic!("{case}: nothing behind {name}"))).unwrap();
            for port in list(object, "/spec/ports") {
                let there = list(target, "/containers")
                    .iter()
                    .flat_map(|container| list(container, "/ports"))
                    .any(|known| known["name"] == port["targetPort"]);
                // While vgpu is taken off the nodes nobody monitors them.
                assert!(there || case.contains("uninstall"), "{case}: {name} {port}");
            }
        }
        if kind == "ServiceMonitor" {
            let matches = |other: &&Value| {
                text(other, "/kind") == "Service" && labels_match(&object["spec"]["selector"]["matchLabels"], &other["metadata"]["labels"])
            };
            let service = all.iter().find(matches).unwrap_or_else(|| panic!("{case}: no service for {name}"));
            assert!(list(service, "/spec/ports").iter().any(|port| port["name"] == object["spec"]["endpoints"][0]["port"]), "{case}");
        }
        if kind == "MutatingWebhookConfiguration" {
            let service = &object["webhooks"][0]["clientConfig"]["service"];
            assert!(names(all, "Service").contains(text(service, "/name")) && service["path"] == "/mutate", "{case}: {service}");
            let certified = names(all, "Certificate");
            let injected = object.pointer("/metadata/annotations/cert-manager.io~1inject-ca-from").and_then(Value::as_str);
            let by = injected.map(|injected| certified.contains(injected.rsplit('/').next().unwrap()));
            assert!(by.unwrap_or_else(|| object["webhooks"][0]["clientConfig"]["caBundle"].is_string()), "{case}: who signs for {name}");
        }
        if kind == "Certificate" {
            assert!(names(all, "Issuer").contains(text(object, "/spec/issuerRef/name")), "{case}");
        }
        if kind == "ConfigMap" {
            let dashboard: Value = serde_json::from_str(text(object, "/data/vgpu.json")).unwrap();
            assert_eq!(dashboard, serde_json::from_slice::<Value>(&std::fs::read(packaging("grafana/vgpu.json")).unwrap()).unwrap());
        }
    }
}

/// What is run in a container is in the image.
fn check_program(path: &str, staged: &str) {
    let inside = path.strip_prefix("/opt/vgpu/").unwrap_or_else(|| panic!("{path} is not in the image"));
    match inside.strip_prefix("root") {
        Some(program) => assert!(staged.contains(&format!("\" {program}\n")), "{path} is not staged by build.sh"),
        None => {
            let recipe = std::fs::read_to_string(packaging("image/Containerfile")).unwrap();
            assert!(
                recipe.contains(&format!("image/{inside}")) && packaging("image").join(inside).is_file(),
                "{path} is not in the recipe"
            );
        }
    }
}

/// What our programs are told, they understand.
fn check_arguments(container: &Value) {
    let arguments: Vec<&str> = list(container, "/args").iter().map(|argument| argument.as_str().unwrap()).collect();
    let program = list(container, "/command").last().and_then(Value::as_str).unwrap_or_default();
    if program.ends_with("/vgpu-dra") {
        let options = Options::try_parse_from(["vgpu-dra", "--node", "n"].into_iter().chain(arguments)).unwrap();
        let mounts = list(container, "/volumeMounts");
        for folder in [&options.registry, &options.cdi, &options.state_dir] {
            assert!(mounts.iter().any(|mount| Path::new(text(mount, "/mountPath")) == folder), "{}", folder.display());
        }
        assert!(mounts.iter().any(|mount| options.plugin.starts_with(text(mount, "/mountPath"))));
    } else if program.ends_with("/vgpu-webhook") {
        let help = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook")).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for argument in arguments {
            assert!(help.contains(argument.split('=').next().unwrap()), "{argument}");
        }
    }
}

/// The paths of all values, without those that are free to have any keys.
fn leaves(value: &Value, path: &str, all: &mut Vec<String>) {
    match value.as_object() {
        Some(map) if !map.is_empty() && !["labels", "resources", "nodeSelector"].contains(&path.rsplit('.').next().unwrap_or_default()) => {
            for (key, value) in map {
                leaves(value, if path.is_empty() { key.clone() } else { format!("{path}.{key}") }.as_str(), all);
            }
        }
        _ => all.push(path.to_owned()),
    }
}

#[test]
fn every_value_is_documented_and_in_the_schema() {
    let read = |name: &str| std::fs::read_to_string(packaging("helm/vgpu").join(name)).unwrap();
    let values = objects("values.yaml", &read("values.yaml")).remove(0);
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let readme = read("README.md");
    let mut all = Vec::new();
    leaves(&values, "", &mut all);
    assert!(all.len() > 35);
    for path in all {
        let last = path.rsplit('.').next().unwrap();
        assert!(readme.contains(&format!("`{path}`")) || readme.contains(&format!("`.{last}`")), "{path} is not in the chart's README");
        let pointer: String = path.split('.').map(|key| format!("/properties/{key}")).collect();
        assert!(schema.pointer(&pointer).is_some(), "{path} is not in values.schema.json");
    }
}

#[test]
fn the_chart_is_this_version() {
    let chart = objects("Chart.yaml", &std::fs::read_to_string(packaging("helm/vgpu/Chart.yaml")).unwrap()).remove(0);
    assert_eq!((text(&chart, "/version"), text(&chart, "/appVersion")), (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION")));
}
