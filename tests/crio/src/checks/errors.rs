//! Requests that are refused.

use vgpu_daemon_tests::cri::ContainerTemplate;

use crate::setting::{Outcome, Setting, ensure, expect_error};

/// The error of a container that cannot be limited reaches CRI's client with the key and the value, and nothing of the container is left.
pub fn bad_value(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "wrong", &[("nvidia.com/gpumem", "10Q")])?;
    let before = setting.host.containers();
    for (name, environment, words) in [
        ("annotation", &[][..], ["nvidia.com/gpumem", "10Q"]),
        ("variable", &[("CUDA_DEVICE_SM_LIMIT", "many")], ["CUDA_DEVICE_SM_LIMIT", "many"]),
    ] {
        let annotations: &[_] = if environment.is_empty() { &[] } else { &[("nvidia.com/gpumem", "1024")] };
        let error = expect_error(setting.run(&pod, &ContainerTemplate { name, annotations, environment, ..Default::default() }), name)?;
        ensure(words.iter().all(|word| error.contains(word)), || format!("expected {words:?} in: {error}"))?;
    }
    ensure(setting.host.containers() == before, || format!("left: {:?}", setting.host.containers()))?;
    // The pod is as usable as before.
    let annotations = &[("nvidia.com/gpumem", "1024")];
    let id = setting.run(&pod, &ContainerTemplate { name: "right", annotations, ..ContainerTemplate::default() })?;
    setting.expect_limit(&pod, &id, 1024)?;
    pod.end()
}
