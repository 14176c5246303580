//! What happens to containers: they end, are removed, and CRI-O ends beneath them.

use vgpu_daemon_tests::cri::{ContainerTemplate, Pod};
use vgpu_e2e::Way;

use crate::crio::Crio;
use crate::setting::{Outcome, Setting, ensure, expect_error, wait_for};

/// A container ends by itself, and a kubelet starts another of its name in the same pod.
pub fn ended_and_again(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "again", &[("nvidia.com/gpumem", "1024")])?;
    let command = &["/bin/sh", "-c", "exit 3"];
    let ended = setting.run(&pod, &ContainerTemplate { name: "main", command, ..ContainerTemplate::default() })?;
    let status = wait_for("the end of the container", || pod.exit_status(&ended))?;
    ensure(status == 3, || format!("exit status {status}, expected 3"))?;
    let id = setting.run(&pod, &ContainerTemplate { name: "main", attempt: 1, ..ContainerTemplate::default() })?;
    setting.expect_limit(&pod, &id, 1024)?;
    // The names select the ended container, too, until it is removed.
    let shown = setting.show(Some(&id))?;
    ensure(shown.len() == 1 && shown[0]["pod"] == "again", || format!("vgpu show {id}: {shown:?}"))?;
    pod.remove(&ended)?;
    setting.expect_limit(&pod, &id, 1024)?;
    let shown = setting.show(Some("again/main"))?;
    ensure(shown.len() == 1 && shown[0]["id"] == id.as_str(), || format!("vgpu show again/main: {shown:?}"))?;
    pod.end()
}

/// Nothing is left of pods that have been removed. Hooks alone leave the directory of an ended container to the next one.
pub fn nothing_is_left(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "leaves", &[("nvidia.com/gpumem", "1024")])?;
    let ids = [setting.start(&pod, "one")?, setting.start(&pod, "two")?];
    setting.expect_limit(&pod, &ids[0], 1024)?;
    pod.remove(&ids[0])?;
    setting.expect_limit(&pod, &ids[1], 1024)?;
    pod.end()?;
    ensure(setting.show(None)?.is_empty(), || "vgpu show lists containers of removed pods".to_owned())?;
    if setting.way == Way::Hooks {
        setting.sweep()?;
        let left = setting.host.containers();
        ensure(left.len() <= 1, || format!("left: {left:?}"))?;
        setting.host.clear_state();
    }
    let left = setting.left();
    ensure(left.is_empty(), || format!("left: {left:?}"))
}

/// CRI-O is restarted.
pub fn restart(setting: &mut Setting) -> Outcome {
    beneath(setting, |_| {})
}

/// CRI-O is killed and started.
pub fn kill(setting: &mut Setting) -> Outcome {
    beneath(setting, Crio::kill)
}

/// CRI-O ends and starts beneath a pod: the limit and what `vgpu show` prints stay, a new container starts in the pod, and all can be
/// removed.
fn beneath(setting: &mut Setting, end: fn(&mut Crio)) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "stays", &[("nvidia.com/gpumem", "1024"), ("nvidia.com/gpucores", "30")])?;
    let id = setting.start(&pod, "main")?;
    let known = |setting: &Setting, pod: &Pod<'_>| -> Outcome {
        let shown = setting.show(Some("default/stays/main"))?;
        ensure(shown.len() == 1 && shown[0]["id"] == id.as_str(), || format!("vgpu show default/stays/main: {shown:?}"))?;
        ensure(pod.exit_status(&id)?.is_none(), || "CRI-O takes the container for ended".to_owned())?;
        setting.expect_limit(pod, &id, 1024)
    };
    known(setting, &pod)?;
    end(&mut setting.crio);
    setting.crio.start();
    known(setting, &pod)?;
    let later = setting.start(&pod, "later")?;
    setting.expect_limit(&pod, &later, 1024)?;
    pod.remove(&id)?;
    setting.expect_limit(&pod, &later, 1024)?;
    pod.end()?;
    let shown = setting.show(None)?;
    ensure(shown.is_empty(), || format!("vgpu show lists containers of removed pods: {shown:?}"))
}

/// As the default handler, vgpu limits the containers of pods that name none.
pub fn default_handler(setting: &mut Setting) -> Outcome {
    setting.crio.configure(&setting.host, setting.way, &["--set-as-default"]);
    setting.crio.start();
    let cri = setting.crio.cri();
    let pod = cri.pod("default", "", &[("nvidia.com/gpumem", "1024")])?;
    setting.expect_limit(&pod, &setting.start(&pod, "main")?, 1024)?;
    pod.end()
}

/// vgpu is removed from CRI-O's configuration. Containers keep running with their limits, new ones have none. CRI-O finds no pods of a
/// handler that it does not have, until it has that again.
pub fn undo(setting: &mut Setting) -> Outcome {
    let cri = setting.crio.cri();
    let pod = setting.pod(&cri, "before", &[("nvidia.com/gpumem", "1024")])?;
    let id = setting.start(&pod, "main")?;
    setting.crio.undo(&setting.host);
    let files = setting.crio.files()?;
    ensure(files == setting.crio.files_before, || format!("changed: {files:?}"))?;
    setting.crio.start();
    ensure(setting.show(Some(&id))?.len() == 1, || "vgpu show no longer has the container".to_owned())?;
    if setting.way == Way::Wrapper {
        let error = expect_error(pod.end(), "the end of a pod without its handler")?;
        ensure(error.contains("runtime handler vgpu"), || error)?;
        setting.crio.configure(&setting.host, setting.way, &[]);
        setting.crio.start();
    }
    setting.expect_limit(&pod, &id, 1024)?;
    pod.end()?;
    setting.crio.undo(&setting.host);
    setting.crio.start();
    let pod = cri.pod("after", "", &[("nvidia.com/gpumem", "1024")])?;
    setting.expect_unlimited(&pod, &setting.start(&pod, "main")?)?;
    pod.end()
}
