//! Checks of the driver, the GPUs, and the ways in which GPUs get into containers.

use super::machine::{Machine, version_numbers};
use super::report::Report;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use toml_edit::{DocumentMut, Item};
use vgpu_monitor::nvml;

const DRIVER: &str = "driver";
const GPUS: &str = "gpus";
const TOOLKIT: &str = "nvidia toolkit";

/// Checks that the kernel driver is loaded.
pub(super) fn check_driver(machine: &Machine, report: &mut Report) {
    match machine.read("/proc/driver/nvidia/version").as_deref().and_then(driver_version) {
        Some(version) => report.ok(DRIVER, format!("NVIDIA {version}")),
        None => report.warn(DRIVER, "no NVIDIA driver is loaded", "load the driver (modprobe nvidia)"),
    }
}

/// Returns the version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …`.
///
/// The open kernel modules write other words around it.
fn driver_version(text: &str) -> Option<&str> {
    text.lines().next()?.split_whitespace().find(|word| version_numbers(word).len() > 1)
}

/// Checks that NVML, on which `vgpu monitor` relies, lists the GPUs.
pub(super) fn check_devices(machine: &Machine, report: &mut Report) {
    let loaded = machine.path("/proc/driver/nvidia/version").exists();
    match nvml::load().and_then(|nvml| Ok((nvml.device_count()?, nvml))) {
        Ok((0, _)) => report.fail(GPUS, "NVML lists no GPU", "run nvidia-smi"),
        Ok((count, nvml)) => report_gpus((0..count).map(|index| describe(&nvml, index)).collect(), report),
        Err(error) => {
            let remedy =
                if loaded { "install libnvidia-ml.so.1 of the driver's version" } else { "install NVIDIA's driver, and run nvidia-smi" };
            report.fail(GPUS, format!("NVML: {}", nvml::explain(&error)), remedy);
        }
    }
}

/// Reports each GPU, in the order of NVML's indices. A broken one, for example one that fell off the bus, is a failure if there is no other
/// that can be shared.
fn report_gpus(gpus: Vec<Result<String, NvmlError>>, report: &mut Report) {
    let is_any_usable = gpus.iter().any(Result::is_ok);
    for (index, gpu) in gpus.into_iter().enumerate() {
        let remedy = "run nvidia-smi and read the kernel log";
        match gpu {
            Ok(gpu) => report.ok(GPUS, format!("{index}: {gpu}")),
            Err(error) if is_any_usable => report.warn(GPUS, format!("{index}: {error}"), remedy),
            Err(error) => report.fail(GPUS, format!("{index}: {error}"), remedy),
        }
    }
}

/// Describes a GPU: name, UUID, memory, and whether MIG is on.
fn describe(nvml: &Nvml, index: u32) -> Result<String, NvmlError> {
    let gpu = nvml.device_by_index(index)?;
    let mib = nvml::memory(nvml, &gpu)?.0 >> 20;
    let mig = match gpu.mig_mode() {
        Ok(mode) if mode.current != 0 => ", MIG",
        _ => "",
    };
    Ok(format!("{} {}, {mib} MiB{mig}", gpu.name()?, gpu.uuid()?))
}

/// Checks NVIDIA's Container Toolkit and the CDI specifications.
pub(super) fn check_toolkit(machine: &Machine, report: &mut Report) {
    let specs = ["/etc/cdi", "/var/run/cdi"].iter().filter(|folder| has_cdi(machine, folder)).copied().collect::<Vec<_>>();
    let cdi = if specs.is_empty() { "no CDI specification".to_owned() } else { format!("CDI in {}", specs.join(", ")) };
    match machine.program("nvidia-container-runtime") {
        Some(program) => {
            let version = machine.version(&program).unwrap_or_else(|| "unknown version".into());
            report.ok(TOOLKIT, format!("{version}, mode {}, {cdi}", toolkit_mode(machine)));
        }
        None if specs.is_empty() => report.note(TOOLKIT, "not installed; GPUs get into containers by --device or a device plugin"),
        None => report.ok(TOOLKIT, format!("not installed; {cdi}")),
    }
}

/// Returns the mode in the toolkit's configuration, "auto" by default.
fn toolkit_mode(machine: &Machine) -> String {
    let text = machine.read("/etc/nvidia-container-runtime/config.toml").unwrap_or_default();
    let doc = text.parse::<DocumentMut>().unwrap_or_default();
    let mode = doc.get("nvidia-container-runtime").and_then(|table| table.get("mode")).and_then(Item::as_str);
    mode.unwrap_or("auto").to_owned()
}

/// Returns whether a folder has a CDI specification of NVIDIA's devices.
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
    fn driver_version_is_found_for_both_kernel_modules() {
        for (text, expected) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: gcc 12\n",
                "535.183.01",
            ),
            ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05"),
        ] {
            assert_eq!(driver_version(text), Some(expected));
        }
        assert_eq!(driver_version(""), None);
    }

    #[test]
    fn a_broken_gpu_is_a_failure_if_no_other_can_be_shared() {
        let states = |gpus: &[bool]| {
            let mut report = Report::default();
            report_gpus(
                gpus.iter().map(|&is_sound| if is_sound { Ok("H200".to_owned()) } else { Err(NvmlError::GpuLost) }).collect(),
                &mut report,
            );
            (report.0.iter().map(|finding| finding.state).collect::<Vec<_>>(), report.passes(false))
        };
        assert_eq!(states(&[true, false]), (vec![State::Ok, State::Warn], true));
        assert_eq!(states(&[false, false]), (vec![State::Fail, State::Fail], false));
    }

    #[test]
    fn toolkit_mode_and_cdi_folders_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bin", "etc/cdi", "etc/nvidia-container-runtime"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let machine = Machine::at(dir.path());
        let mut report = Report::default();
        check_toolkit(&machine, &mut report);
        assert_eq!(report.0[0].state, State::Note);

        fs::write(dir.path().join("etc/cdi/nvidia.yaml"), "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\n").unwrap();
        fs::write(dir.path().join("etc/nvidia-container-runtime/config.toml"), "[nvidia-container-runtime]\nmode = \"cdi\"\n").unwrap();
        let program = dir.path().join("bin/nvidia-container-runtime");
        fs::write(&program, "#!/bin/sh\necho 'NVIDIA Container Runtime version 1.17.8'\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        check_toolkit(&machine, &mut report);
        assert_eq!(report.0[1].message, "1.17.8, mode cdi, CDI in /etc/cdi");
    }
}
