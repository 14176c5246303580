//! The driver, its GPUs, and how containers come by them.

use super::machine::{Machine, leading};
use super::report::Report;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use toml_edit::{DocumentMut, Item};

const DRIVER: &str = "driver";
const GPUS: &str = "gpus";
const TOOLKIT: &str = "nvidia toolkit";

/// The kernel side of the driver.
pub(super) fn driver(machine: &Machine, report: &mut Report) {
    match machine.read("/proc/driver/nvidia/version").as_deref().and_then(version) {
        Some(version) => report.ok(DRIVER, format!("NVIDIA {version}")),
        None => report.warn(DRIVER, "no NVIDIA driver is loaded, so there is nothing to share", "load the driver (modprobe nvidia)"),
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …`, with other words for the open modules.
fn version(text: &str) -> Option<&str> {
    text.lines().next()?.split_whitespace().find(|word| leading(word).len() > 1)
}

/// What NVML says there is; it is what `vgpu monitor` will go by.
pub(super) fn devices(machine: &Machine, report: &mut Report) {
    let loaded = machine.path("/proc/driver/nvidia/version").exists();
    // The package with the unversioned name is for developers; machines that only run things lack it.
    let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init();
    match nvml.and_then(|nvml| Ok((nvml.device_count()?, nvml))) {
        Ok((0, _)) => report.warn(GPUS, "NVML knows of none", "see what nvidia-smi says"),
        Ok((count, nvml)) => (0..count).for_each(|index| match device(&nvml, index) {
            Ok(gpu) => report.ok(GPUS, format!("{index}: {gpu}")),
            // One that fell off the bus, say; the others can be shared all the same.
            Err(error) => report.warn(GPUS, format!("{index}: {error}"), "see what nvidia-smi and the kernel's log say of it"),
        }),
        Err(error) if loaded => report.fail(GPUS, format!("NVML: {error}"), "install the driver's libnvidia-ml.so.1 of the same version"),
        Err(error) => report.note(GPUS, format!("NVML: {error}")),
    }
}

fn device(nvml: &Nvml, index: u32) -> Result<String, NvmlError> {
    let gpu = nvml.device_by_index(index)?;
    let mib = gpu.memory_info()?.total >> 20;
    let mig = match gpu.mig_mode() {
        Ok(mode) if mode.current != 0 => ", MIG",
        _ => "",
    };
    Ok(format!("{} {}, {mib} MiB{mig}", gpu.name()?, gpu.uuid()?))
}

/// NVIDIA's Container Toolkit, and CDI.
pub(super) fn toolkit(machine: &Machine, report: &mut Report) {
    let specs = ["/etc/cdi", "/var/run/cdi"].iter().filter(|folder| has_cdi(machine, folder)).copied().collect::<Vec<_>>();
    let cdi = if specs.is_empty() { "no CDI specification".to_owned() } else { format!("CDI in {}", specs.join(", ")) };
    match machine.program("nvidia-container-runtime") {
        Some(program) => {
            let version = machine.version(&program).unwrap_or_else(|| "of unknown version".into());
            report.ok(TOOLKIT, format!("{version}, mode {}, {cdi}", mode(machine)));
        }
        None if specs.is_empty() => {
            report.note(TOOLKIT, "not installed; containers get GPUs by --device, or from what a device plugin mounts")
        }
        None => report.ok(TOOLKIT, format!("not installed; {cdi}")),
    }
}

fn mode(machine: &Machine) -> String {
    let text = machine.read("/etc/nvidia-container-runtime/config.toml").unwrap_or_default();
    let doc = text.parse::<DocumentMut>().unwrap_or_default();
    let mode = doc.get("nvidia-container-runtime").and_then(|table| table.get("mode")).and_then(Item::as_str);
    mode.unwrap_or("auto").to_owned()
}

fn has_cdi(machine: &Machine, folder: &str) -> bool {
    let Ok(files) = std::fs::read_dir(machine.path(folder)) else { return false };
    files.flatten().any(|file| std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains("nvidia.com/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report::State;
    use std::fs;

    #[test]
    fn the_drivers_version_in_each_of_its_words() {
        for (text, expected) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: gcc 12\n",
                "535.183.01",
            ),
            ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05"),
        ] {
            assert_eq!(version(text), Some(expected));
        }
        assert_eq!(version(""), None);
    }

    #[test]
    fn the_toolkits_mode_and_cdi_are_told() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "etc/cdi", "etc/nvidia-container-runtime"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let machine = Machine::at(dir.path());
        let mut report = Report::default();
        toolkit(&machine, &mut report);
        assert_eq!(report.0[0].state, State::Note);

        fs::write(dir.path().join("etc/cdi/nvidia.yaml"), "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n").unwrap();
        fs::write(dir.path().join("etc/nvidia-container-runtime/config.toml"), "[nvidia-container-runtime]\nmode = \"cdi\"\n").unwrap();
        let program = dir.path().join("bin/nvidia-container-runtime");
        fs::write(&program, "#!/bin/sh\necho 'NVIDIA Container Runtime version 1.17.8'\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        toolkit(&machine, &mut report);
        assert_eq!(report.0[1].says, "1.17.8, mode cdi, CDI in /etc/cdi");
    }
}
