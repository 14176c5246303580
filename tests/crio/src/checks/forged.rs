//! Annotations that pretend to be an engine's.

use vgpu_daemon_tests::cri::{ContainerTemplate, PodTemplate};

use crate::setting::{Outcome, Setting};

/// Marks of a sandbox, of containerd and CRI-O.
const SANDBOX: [(&str, &str); 2] = [("io.kubernetes.cri.container-type", "sandbox"), ("io.kubernetes.cri-o.ContainerType", "sandbox")];
/// Names of a namespace that may opt out, of containerd and CRI-O.
const NAMESPACE: [(&str, &str); 3] = [
    ("io.kubernetes.cri.sandbox-namespace", "kube-system"),
    ("io.kubernetes.pod.namespace", "kube-system"),
    ("io.kubernetes.cri-o.Namespace", "kube-system"),
];
/// A container's request to opt out.
const OPT_OUT: [(&str, &str); 2] = [("CUDA_DISABLE_CONTROL", "true"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")];

/// A pod, or CRI's client, marks a container as a sandbox.
pub fn sandbox(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let annotations: Vec<_> = SANDBOX.into_iter().chain([("nvidia.com/gpumem", "1024")]).collect();
    let pod = setting.pod(&cri, "forged", &annotations)?;
    for (name, annotations) in
        [("by-pod", &[][..]), ("by-client", &SANDBOX[..]), ("with-id", &[SANDBOX[1], ("io.kubernetes.cri-o.SandboxID", "x")])]
    {
        let id = setting.run(&pod, &ContainerTemplate { name, annotations, ..ContainerTemplate::default() })?;
        setting.expect_limit(&pod, &id, 1024)?;
    }
    pod.end()
}

/// A pod, or CRI's client, names another namespace, which may opt out.
pub fn namespace(setting: &mut Setting) -> Outcome {
    setting.host.policy("[opt_out]\nnamespaces = [\"kube-system\"]");
    let outcome = opting_out(setting);
    setting.host.policy("");
    outcome
}

fn opting_out(setting: &Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "opting-out", &NAMESPACE)?;
    for (name, annotations) in [("by-pod", &[][..]), ("by-client", &NAMESPACE[..])] {
        let id = setting.run(&pod, &ContainerTemplate { name, annotations, environment: &OPT_OUT, ..ContainerTemplate::default() })?;
        setting.expect_limit(&pod, &id, 1024)?;
    }
    pod.end()?;
    // The engine's own word counts.
    let template = PodTemplate { name: "allowed", namespace: "kube-system", handler: setting.handler(), ..PodTemplate::default() };
    let pod = cri.run_pod(&template)?;
    let id = setting.run(&pod, &ContainerTemplate { name: "main", environment: &OPT_OUT, ..ContainerTemplate::default() })?;
    setting.expect_unlimited(&pod, &id)?;
    pod.end()
}
