//! Manifests are valid for every supported Kubernetes version, and name only what exists.

use serde_json::{Value, json};

use crate::common::manifests::{check_claim, check_pod, check_schemas, files, names, pod, text};

#[test]
fn manifests_are_valid_and_their_references_exist() {
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
fn mutated_hami_manifests_are_valid() {
    let (name, objects) = files("kubernetes/claims").into_iter().find(|(name, _)| name.ends_with("hami-by-webhook.yaml")).unwrap();
    for percent in [false, true] {
        let mut pod = objects[0].clone();
        if percent {
            let limits = pod["spec"]["containers"][0]["resources"]["limits"].as_object_mut().unwrap();
            limits.remove("nvidia.com/gpumem");
            limits.insert("nvidia.com/gpumem-percentage".to_owned(), json!(25));
            limits.insert("nvidia.com/gpu".to_owned(), json!(2));
        }
        let mutated = vgpu_dra::webhook::pod::mutate(&pod, &[24 << 30, 80 << 30].into(), Some("vgpu")).unwrap().unwrap();
        pod["spec"] = mutated.spec;
        let mut all = mutated.templates.clone();
        all.push(pod.clone());
        check_schemas(&name, &all);
        check_pod(&name, &pod["spec"], &all);
        check_claim(&name, &mutated.templates[0]["spec"]["spec"]["devices"], &["gpu.vgpu"].into());
    }
}
