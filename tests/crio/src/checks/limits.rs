//! What limits a container, and what does not.

use vgpu_daemon_tests::cri::{ContainerTemplate, PodTemplate};
use vgpu_e2e::{MIB, Way};

use crate::setting::{Outcome, Setting, ensure, wait_for};

/// A container of a pod with annotations sees its share, and no more memory is obtained, by its first process and by a later one.
pub fn memory_is_refused(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "share", &[("nvidia.com/gpumem", "1024"), ("nvidia.com/gpucores", "30")])?;
    let first = ["/bin/sh", "-c", "/programs/fill --chunk 16M --max 1280M | grep -q OUT_OF_MEMORY && exit 7"];
    let ending = setting.run(&pod, &ContainerTemplate { name: "first", command: &first, ..ContainerTemplate::default() })?;
    let status = wait_for("the end of the container", || pod.exit_status(&ending))?;
    ensure(status == 7, || format!("the container's first process was not refused memory: status {status}"))?;
    let id = setting.start(&pod, "main")?;
    setting.expect_limit(&pod, &id, 1024)?;
    pod.end()
}

/// `vgpu show` and `vgpu set` know the container by its names in Kubernetes, by its id, and by the short id that `crictl` prints.
pub fn shown_and_set_by_name(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let annotations = [("nvidia.com/gpumem", "1024"), ("nvidia.com/gpucores", "30")];
    let template =
        PodTemplate { name: "web-0", namespace: "team", handler: setting.handler(), annotations: &annotations, ..Default::default() };
    let pod = cri.run_pod(&template)?;
    let id = setting.start(&pod, "main")?;
    setting.start(&pod, "side")?;
    for name in ["main", "web-0/main", "team/web-0/main", &id, &id[..13]] {
        let found = setting.show(Some(name))?;
        let [container] = found.as_slice() else { return Err(format!("vgpu show {name}: {found:?}").into()) };
        let names = ["id", "namespace", "pod", "container"].map(|key| container[key].as_str().unwrap_or_default());
        ensure(names == [&id, "team", "web-0", "main"], || format!("vgpu show {name}: {names:?}"))?;
        let share = &container["gpus"][0];
        let limits = (share["memory_limit"].as_u64(), share["cores"].as_u64());
        ensure(limits == (Some(1024 * MIB), Some(30)), || format!("vgpu show {name}: limits {limits:?}"))?;
    }
    let table = setting.vgpu(&["show"])?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    ensure(["team/web-0/main", "team/web-0/side"].iter().all(|name| table.contains(name)), || table)?;
    for (name, mib) in [("team/web-0/main", 896), (&id[..13], 768)] {
        let output = setting.vgpu(&["set", name, "--gpumem", &mib.to_string()])?;
        ensure(output.status.success(), || format!("vgpu set {name}: {}", String::from_utf8_lossy(&output.stderr)))?;
        setting.expect_limit(&pod, &id, mib)?;
    }
    pod.end()
}

/// The annotations of a pod count for all of its containers, those with a container's name for that one, and those that CRI's client gives
/// a container before both.
pub fn annotations_of_pod_and_container(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "several", &[("nvidia.com/gpumem", "1024"), ("nvidia.com/gpumem.small", "896"), ("other.io/x", "y")])?;
    for (name, annotations, mib) in [("large", &[][..], 1024), ("small", &[], 896), ("own", &[("nvidia.com/gpumem", "768")], 768)] {
        let id = setting.run(&pod, &ContainerTemplate { name, annotations, ..ContainerTemplate::default() })?;
        setting.expect_limit(&pod, &id, mib)?;
    }
    pod.end()
}

/// A container's variables are a request, too.
pub fn variables(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "variables", &[])?;
    let environment = &[("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_DEVICE_SM_LIMIT", "30")];
    let id = setting.run(&pod, &ContainerTemplate { name: "main", environment, ..ContainerTemplate::default() })?;
    setting.expect_limit(&pod, &id, 1024)?;
    pod.end()
}

/// A container that requests nothing is unchanged, and so is one of another handler.
pub fn others_are_unchanged(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let silent = setting.pod(&cri, "silent", &[("other.io/x", "y")])?;
    setting.expect_unlimited(&silent, &setting.start(&silent, "main")?)?;
    silent.end()?;
    if setting.way == Way::Wrapper {
        let other = cri.pod("other", "", &[("nvidia.com/gpumem", "1024")])?;
        setting.expect_unlimited(&other, &setting.start(&other, "main")?)?;
        other.end()?;
    }
    Ok(())
}

/// The sandbox of a pod whose containers share their processes is a container with its pod's annotations. It is not limited.
pub fn sandbox_is_unchanged(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let annotations = [("nvidia.com/gpumem", "1024")];
    let template =
        PodTemplate { name: "shares", handler: setting.handler(), annotations: &annotations, shares_processes: true, ..Default::default() };
    let pod = cri.run_pod(&template)?;
    ensure(setting.crio.runtime_root().join(pod.id()).is_dir(), || "CRI-O made no container for the sandbox".to_owned())?;
    let shown = setting.show(None)?;
    ensure(shown.iter().all(|one| one["id"].as_str() != Some(pod.id())), || format!("the sandbox is limited: {shown:?}"))?;
    setting.expect_limit(&pod, &setting.start(&pod, "main")?, 1024)?;
    pod.end()
}
