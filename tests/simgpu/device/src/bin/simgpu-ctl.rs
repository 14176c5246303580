//! Makes a simulated machine and looks at it.

use std::process::ExitCode;

use simgpu_device::{Config, Device, config, default_path};

const HELP: &str = "\
simgpu-ctl COMMAND      (the machine is the file SIMGPU_STATE, default /dev/shm/simgpu)
  create [NAME=VALUE]…  make a machine; names: gpus total reserved baseline context context_hidden
                        multiprocessors threads slice_ns switch_ns launch_ns kernel_ns; sizes take K, M, G
  remove                remove its file
  show                  every GPU's memory and processes, as PIDs of this namespace
  peak [GPU [GROUP]]    highest bytes of all processes (of a group) at one instant, as NVML shows them
  groups                every group's peaks
  nvml-calls            number of NVML calls made
  reset                 start peaks and counts anew";

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("simgpu-ctl: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let path = default_path();
    let open = || Device::open(&path).map_err(|error| format!("{}: {error}", path.display()));
    match arguments {
        ["create", properties @ ..] => {
            let mut config = Config::default();
            for property in properties {
                let (name, value) = property.split_once('=').ok_or_else(|| format!("{property}: not NAME=VALUE"))?;
                config.set(name, value)?;
            }
            Device::create(&path, &config).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        ["remove"] => std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?,
        ["show"] => show(&open()?),
        ["peak"] => println!("{}", open()?.peak(0)),
        ["peak", gpu] => println!("{}", open()?.peak(index(gpu)?)),
        ["peak", gpu, group] => println!("{}", open()?.group_peak(group, index(gpu)?)),
        ["groups"] => {
            let device = open()?;
            for gpu in 0..device.gpus() {
                for (key, peak) in device.group_peaks(gpu) {
                    println!("gpu={gpu} group={key} peak={peak}");
                }
            }
        }
        ["nvml-calls"] => println!("{}", open()?.nvml_calls()),
        ["reset"] => open()?.reset(),
        _ => return Err(format!("usage:\n{HELP}")),
    }
    Ok(())
}

fn index(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&gpu| gpu < simgpu_device::MAX_GPUS).ok_or_else(|| format!("{text}: not a GPU's index"))
}

fn show(device: &Device) {
    for gpu in 0..device.gpus() {
        let memory = device.memory(gpu);
        println!(
            "gpu={gpu} uuid={} total={} reserved={} used={} free={} peak={} utilization={}",
            config::uuid_text(gpu),
            memory.total,
            memory.reserved,
            memory.used,
            memory.free,
            device.peak(gpu),
            device.utilization(gpu)
        );
        for process in device.processes(gpu) {
            println!(
                "  pid={} used={} hidden={} utilization={} busy_ns={}",
                process.pid, process.used, process.hidden, process.utilization, process.busy_ns
            );
        }
    }
}
