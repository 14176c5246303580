//! The Helm chart renders to manifests that are valid for every supported Kubernetes version and name only what exists.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use serde_json::{Value, json};
use vgpu_dra::options::Options;

use crate::common::manifests::{check_pod, check_schemas, list, names, objects, packaging, pod, text};

/// Returns a Python interpreter that has Helm's library, or `None`.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("VGPU_TEST_HELM").map(PathBuf::from);
    let found = named.into_iter().chain(["python3".into()]).find(|python| {
        let import = Command::new(python).args(["-c", "import helm_python"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    });
    if found.is_none() {
        eprintln!(
            "SKIPPED: rendering the chart needs the Python package helm-python-sdk (VGPU_TEST_HELM: path of a Python interpreter that has it)"
        );
    }
    found
}

/// Lints and renders the chart, once for each of these values.
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
fn chart_renders_to_valid_manifests_whose_references_exist() {
    let Some(python) = python() else { return };
    let webhook = |mode: &str| json!({ "enabled": true, "tls": { "mode": mode, "secretName": "given", "caBundle": "Q0E=" } });
    let scraped = json!({
        "token": { "secretName": "given" }, "serviceMonitor": { "enabled": true, "labels": { "a": "b" } }, "dashboard": { "enabled": true },
    });
    let strict = json!({
        "enabled": true, "tls": { "mode": "cert-manager" }, "clientCA": { "secretName": "given" }, "replicas": 1,
        "networkPolicy": { "from": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }] },
    });
    let values = json!([
        {},
        { "webhook": webhook("self"), "monitor": scraped },
        { "webhook": webhook("cert-manager"), "dra": { "devices": "nodes", "mounts": ["/home/driver:/usr/local/nvidia"], "hooks": false } },
        { "webhook": strict, "image": { "digest": format!("sha256:{}", "0".repeat(64)) } },
        {
            "install": { "policy": "shared_claims = \"start\"\n" }, "affinity": { "nodeAffinity": {} }, "podAnnotations": { "a": "b" },
            "dra": { "evictAfter": 60, "metricsFrom": [{ "podSelector": {} }], "podMonitor": { "enabled": true, "labels": { "a": "b" } } },
        },
        { "install": { "enabled": false }, "monitor": { "enabled": false } },
        { "webhook": webhook("secret"), "install": { "enabled": false }, "nodeSelector": {}, "tolerations": [] },
        { "install": { "uninstall": true } },
        { "install": { "enabled": false, "uninstall": true } },
        { "dra": { "enabled": false }, "monitor": { "enabled": false } },
        { "monitor": { "token": { "enabled": false }, "tls": { "secretName": "given" }, "serviceMonitor": { "enabled": true } } },
        { "monitor": { "token": { "secretName": "given" } } },
        { "runtimeClass": { "enabled": false }, "deviceClasses": { "enabled": false }, "install": { "runtime": "crio", "restart": false } },
    ]);
    for (index, result) in render(&python, &values).into_iter().enumerate() {
        let case = format!("values {}", values[index]);
        assert_eq!(result["error"], Value::Null, "{case}");
        assert_eq!(result["lint"], json!([]), "{case}");
        let rendered = result["rendered"].as_object().unwrap();
        let manifests = rendered.iter().filter(|(name, _)| name.ends_with(".yaml"));
        let all: Vec<Value> = manifests.flat_map(|(name, text)| objects(name, text.as_str().unwrap())).collect();
        check_schemas(&case, &all);
        check_chart(&case, &all);
        check_tokens(&case, &all);
    }
    let refused = json!([{ "dra": { "every": 0 } }, { "unknown": 1 }, { "install": { "runtime": "docker" } }, { "webhook": { "enabled": true, "tls": { "mode": "secret" } } }, { "monitor": { "serviceMonitor": { "enabled": true } } }]);
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
            check_workload(case, object, spec, all, &staged);
        }
        match kind {
            "ClusterRoleBinding" => {
                assert!(names(all, "ClusterRole").contains(text(object, "/roleRef/name")), "{case}: {name}");
                assert!(names(all, "ServiceAccount").contains(text(object, "/subjects/0/name")), "{case}: {name}");
            }
            "ValidatingAdmissionPolicyBinding" => {
                assert!(names(all, "ValidatingAdmissionPolicy").contains(text(object, "/spec/policyName")), "{case}: {name}");
            }
            "NetworkPolicy" | "PodDisruptionBudget" => {
                let selector = object.pointer("/spec/podSelector/matchLabels").or(object.pointer("/spec/selector/matchLabels")).unwrap();
                assert!(selects_pods(selector, all), "{case}: {kind} {name} selects no pods");
            }
            "Service" => check_service(case, object, all),
            "ServiceMonitor" => check_service_monitor(case, object, all),
            "MutatingWebhookConfiguration" => check_webhook_configuration(case, object, all),
            "Certificate" => assert!(names(all, "Issuer").contains(text(object, "/spec/issuerRef/name")), "{case}"),
            "ConfigMap" if name.ends_with("-policy") => {
                assert_eq!(text(object, "/data/config.toml"), "shared_claims = \"start\"\n", "{case}")
            }
            "ConfigMap" => {
                let dashboard: Value = serde_json::from_str(text(object, "/data/vgpu.json")).unwrap();
                assert_eq!(dashboard, serde_json::from_slice::<Value>(&std::fs::read(packaging("grafana/vgpu.json")).unwrap()).unwrap());
            }
            _ => {}
        }
    }
}

/// Returns true if a selector selects pods of the chart.
fn selects_pods(selector: &Value, all: &[Value]) -> bool {
    all.iter().any(|other| pod(other).is_some() && labels_match(selector, &other["spec"]["template"]["metadata"]["labels"]))
}

/// Checks an object that creates pods. `staged` is the script that stages the image's programs.
fn check_workload(case: &str, object: &Value, spec: &Value, all: &[Value], staged: &str) {
    check_pod(case, spec, all);
    assert!(
        labels_match(&object["spec"]["selector"]["matchLabels"], &object["spec"]["template"]["metadata"]["labels"]),
        "{case}: {}",
        text(object, "/metadata/name")
    );
    let containers = list(spec, "/containers");
    assert!(!containers.is_empty(), "{case}: {} has no containers", text(object, "/metadata/name"));
    for container in containers {
        check_probes(case, container);
        for program in list(container, "/command") {
            check_program(program.as_str().unwrap(), staged);
        }
        check_arguments(container);
    }
}

/// Checks that programs that serve have probes, and that the monitor, which enforces, is not started again because HTTP does not answer.
fn check_probes(case: &str, container: &Value) {
    let program = list(container, "/command").last().and_then(Value::as_str).unwrap_or_default().rsplit('/').next().unwrap();
    for probe in ["livenessProbe", "readinessProbe"] {
        let must_have = ["vgpu-dra", "vgpu-webhook"].contains(&program);
        assert!(!must_have || container[probe]["httpGet"]["path"] == "/healthz", "{case}: {program} has no {probe}");
    }
    let has = |probe| !container[probe].is_null();
    if program == "monitor.sh" {
        assert!(has("readinessProbe") && !has("livenessProbe") && !has("startupProbe"), "{case}: {container}");
    }
}

/// Checks that the accounts of pods that do not call the API server give them no token.
fn check_tokens(case: &str, all: &[Value]) {
    let bound: Vec<&str> =
        all.iter().filter(|object| text(object, "/kind") == "ClusterRoleBinding").map(|object| text(object, "/subjects/0/name")).collect();
    for account in all.iter().filter(|object| text(object, "/kind") == "ServiceAccount") {
        let has_token = account["automountServiceAccountToken"] != false;
        assert_eq!(has_token, bound.contains(&text(account, "/metadata/name")), "{case}: {account}");
    }
}

/// Checks that a service selects pods, and that these have its ports.
fn check_service(case: &str, object: &Value, all: &[Value]) {
    let name = text(object, "/metadata/name");
    let target = all
        .iter()
        .filter(|other| pod(other).is_some())
        .find(|other| labels_match(&object["spec"]["selector"], &other["spec"]["template"]["metadata"]["labels"]));
    let target = pod(target.unwrap_or_else(|| panic!("{case}: {name} selects no pods"))).unwrap();
    for port in list(object, "/spec/ports") {
        let exists = list(target, "/containers")
            .iter()
            .flat_map(|container| list(container, "/ports"))
            .any(|known| known["name"] == port["targetPort"]);
        // While vgpu is being uninstalled, the nodes have no monitor.
        assert!(exists || case.contains("uninstall"), "{case}: {name} {port}");
    }
}

fn check_service_monitor(case: &str, object: &Value, all: &[Value]) {
    let matches = |other: &&Value| {
        text(other, "/kind") == "Service" && labels_match(&object["spec"]["selector"]["matchLabels"], &other["metadata"]["labels"])
    };
    let service = all.iter().find(matches).unwrap_or_else(|| panic!("{case}: {} selects no service", text(object, "/metadata/name")));
    assert!(list(service, "/spec/ports").iter().any(|port| port["name"] == object["spec"]["endpoints"][0]["port"]), "{case}");
}

/// Checks the webhook's service and the source of its CA certificate.
fn check_webhook_configuration(case: &str, object: &Value, all: &[Value]) {
    let service = &object["webhooks"][0]["clientConfig"]["service"];
    assert!(names(all, "Service").contains(text(service, "/name")) && service["path"] == "/mutate", "{case}: {service}");
    let certificates = names(all, "Certificate");
    let injected = object.pointer("/metadata/annotations/cert-manager.io~1inject-ca-from").and_then(Value::as_str);
    let has_certificate = injected.map(|injected| certificates.contains(injected.rsplit('/').next().unwrap()));
    assert!(
        has_certificate
            .unwrap_or_else(|| object["webhooks"][0]["clientConfig"]["caBundle"].is_string() || manages_certificate(object, all)),
        "{case}: {}: expected a CA certificate",
        text(object, "/metadata/name")
    );
}

/// Returns whether a webhook makes its own certificate, and may write its CA into this configuration.
fn manages_certificate(configuration: &Value, all: &[Value]) -> bool {
    let argument = json!(format!("--configuration={}", text(configuration, "/metadata/name")));
    let writes = all.iter().filter_map(pod).flat_map(|spec| list(spec, "/containers")).any(|it| list(it, "/args").contains(&argument));
    let may_write = all.iter().filter(|object| text(object, "/kind") == "ClusterRole").flat_map(|role| list(role, "/rules")).any(|rule| {
        list(rule, "/resources").contains(&json!("mutatingwebhookconfigurations"))
            && rule["resourceNames"] == json!([text(configuration, "/metadata/name")])
    });
    writes && may_write
}

#[test]
fn two_renderings_are_the_same() {
    let Some(python) = python() else { return };
    // As with GitOps, which renders the chart again and again.
    for values in [json!({}), json!({ "webhook": { "enabled": true }, "monitor": { "token": { "secretName": "metrics" } } })] {
        let both = render(&python, &json!([values, values]));
        assert!(both[0]["rendered"].as_object().is_some_and(|files| !files.is_empty()), "{values}: {both:?}");
        assert_eq!(both[0]["rendered"], both[1]["rendered"], "{values}");
    }
}

/// Checks that a program that a container runs is in the image.
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

/// Checks that the programs accept their arguments.
fn check_arguments(container: &Value) {
    let arguments: Vec<&str> = list(container, "/args").iter().map(|argument| argument.as_str().unwrap()).collect();
    let program = list(container, "/command").last().and_then(Value::as_str).unwrap_or_default();
    if program.ends_with("/vgpu-dra") {
        let options = Options::try_parse_from(["vgpu-dra", "--node", "n"].into_iter().chain(arguments)).unwrap();
        let mounts = list(container, "/volumeMounts");
        for folder in [&options.registry_dir, &options.cdi_dir, &options.state_dir] {
            assert!(mounts.iter().any(|mount| Path::new(text(mount, "/mountPath")) == folder), "{}", folder.display());
        }
        assert!(mounts.iter().any(|mount| options.plugin_dir.starts_with(text(mount, "/mountPath"))));
    } else if program.ends_with("/vgpu-webhook") {
        let help = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook")).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for argument in arguments {
            assert!(help.contains(argument.split('=').next().unwrap()), "{argument}");
        }
    }
}

/// Collects the paths of all values. Maps with arbitrary keys count as one value.
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
fn values_are_documented_and_in_the_schema() {
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
fn chart_has_the_crates_version() {
    let chart = objects("Chart.yaml", &std::fs::read_to_string(packaging("helm/vgpu/Chart.yaml")).unwrap()).remove(0);
    assert_eq!((text(&chart, "/version"), text(&chart, "/appVersion")), (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION")));
}

#[test]
fn image_sees_only_nvml_of_the_nodes_libraries() {
    let host = tempfile::tempdir().unwrap();
    let folder = host.path().join("usr/lib64");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libnvidia-ml.so.580", "libc.so.6"] {
        std::fs::write(folder.join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("libnvidia-ml.so.580", folder.join("libnvidia-ml.so.1")).unwrap();
    let run = |host: &Path, script: &str| {
        let mut command = Command::new(packaging("image/driver.sh"));
        command.env("HOST", host).env("LOOK", "0.05").args(["sh", "-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let output = run(host.path(), "cd $LD_LIBRARY_PATH && ls && cat libnvidia-ml.so.1").wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "libnvidia-ml.so.1\nlibnvidia-ml.so.580", "{output:?}");
    // The driver of the GPU Operator is mounted later, and goes away while it is replaced.
    let later = tempfile::tempdir().unwrap();
    let driver = later.path().join("run/nvidia/driver/usr/lib64");
    let wait = "cd $LD_LIBRARY_PATH; until cat libnvidia-ml.so.1 2>/dev/null; do sleep .05; done; while [ -e libnvidia-ml.so.1 ]; do sleep .05; done; echo gone";
    let mut waits = run(later.path(), wait);
    std::fs::create_dir_all(&driver).unwrap();
    std::fs::write(driver.join("libnvidia-ml.so.1"), "later\n").unwrap();
    let mut lines = std::io::BufReader::new(waits.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "later");
    std::fs::remove_dir_all(&driver).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "gone");
    assert!(waits.wait().unwrap().success());
}

#[test]
fn monitor_makes_a_token_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let token = |folder: &Path| {
        let mut command = Command::new("sh");
        command.arg(packaging("image/monitor.sh")).envs([("WAIT", "no"), ("ENTER", "echo")]).env("TOKEN_DIR", folder);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/usr/bin/vgpu monitor --token-file=/proc/self/fd/3/token\n");
        std::fs::read_to_string(folder.join("token")).unwrap()
    };
    let folders = ["one", "other", "given"].map(|name| dir.path().join(name));
    folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    std::fs::write(folders[2].join("token"), "secret").unwrap();
    let first = token(&folders[0]);
    assert!(first.len() == 64 && first.chars().all(|c| c.is_ascii_hexdigit()), "{first}");
    assert_eq!(token(&folders[0]), first, "another start of the container");
    assert_ne!(token(&folders[1]), first);
    assert_eq!(token(&folders[2]), "secret");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(folders[0].join("token")).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn monitor_waits_for_the_images_version() {
    let dir = tempfile::tempdir().unwrap();
    let (image, host, enter) = (dir.path().join("image"), dir.path().join("host"), dir.path().join("enter"));
    for root in [image.join("root"), host.clone()] {
        std::fs::create_dir_all(root.join("usr/bin")).unwrap();
    }
    std::fs::copy(packaging("image/monitor.sh"), image.join("monitor.sh")).unwrap();
    std::fs::write(image.join("root/usr/bin/vgpu"), "new").unwrap();
    std::fs::write(host.join("usr/bin/vgpu"), "old").unwrap();
    std::fs::write(&enter, "echo \"$@\"\n").unwrap();
    let start = |wait: &str| {
        let mut command = Command::new("sh");
        command.arg(image.join("monitor.sh")).arg("--legacy-metrics").env("HOST", &host).env("WAIT", wait);
        command.env("ENTER", format!("sh {}", enter.display())).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut waits = start("yes");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(waits.try_wait().unwrap().is_none(), "must wait until the installer has run");
    std::fs::write(host.join("usr/bin/vgpu"), "new").unwrap();
    for started in [waits, start("no")] {
        let output = String::from_utf8(started.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(output, "/usr/bin/vgpu monitor --legacy-metrics\n");
    }
}
