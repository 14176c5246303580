//! Creates and inspects a simulated machine.

use std::process::ExitCode;
use std::sync::Arc;

use simgpu_device::{Config, Device, Slot, Visibility, config, default_path, now_ns};

const HELP: &str = "\
simgpu-ctl COMMAND      (the machine is the file SIMGPU_STATE, default /dev/shm/simgpu)
  create [NAME=VALUE]…  create a machine; names: gpus total reserved baseline context context_hidden context_ns
                        multiprocessors threads slice_ns switch_ns preempt_ns launch_ns kernel_ns event_ns disable_ns enable_ns
                        refuse_controls no_ioctls; sizes take K, M, G
  remove                remove its file
  show                  print memory and processes of every GPU, with PIDs of this namespace
  peak [GPU [GROUP]]    print the peak memory of all processes (of one group) as NVML reports it, in bytes
  most [GPU]            print the peak including memory that NVML attributes to no process (managed memory)
  groups                print the peaks of every group
  nvml-calls            print the number of NVML calls
  reset                 reset peaks and counts
  hold GPU BYTES        allocate memory like a process with a context, print `held`, keep it until standard input ends
  work GPU NS COUNT     after a line of input, keep the GPU busy COUNT times for NS; print the start and end of each";

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
                let (name, value) = property.split_once('=').ok_or_else(|| format!("{property}: expected NAME=VALUE"))?;
                config.set(name, value)?;
            }
            Device::create(&path, &config).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        ["remove"] => std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?,
        ["show"] => show(&open()?),
        ["peak"] => println!("{}", open()?.peak(0)),
        ["peak", gpu] => println!("{}", open()?.peak(index(gpu)?)),
        ["peak", gpu, group] => println!("{}", open()?.group_peak(group, index(gpu)?)),
        ["most"] => println!("{}", open()?.peak_total(0)),
        ["most", gpu] => println!("{}", open()?.peak_total(index(gpu)?)),
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
        ["hold", gpu, bytes] => hold(open()?, index(gpu)?, number(bytes)?)?,
        ["work", gpu, ns, count] => work(open()?, index(gpu)?, number(ns)?, number(count)?)?,
        _ => return Err(format!("usage:\n{HELP}")),
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text}: expected a number"))
}

fn hold(device: Device, gpu: usize, bytes: u64) -> Result<(), String> {
    let slot = Slot::attach(Arc::new(device)).map_err(|error| error.to_string())?;
    slot.count_context(gpu, true);
    slot.charge(gpu, bytes, Visibility::Visible).map_err(|_| "out of memory".to_owned())?;
    println!("held");
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    Ok(())
}

fn work(device: Device, gpu: usize, ns: u64, count: u64) -> Result<(), String> {
    let slot = Slot::attach(Arc::new(device)).map_err(|error| error.to_string())?;
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    let begun = now_ns();
    let spans = (0..count).map(|_| slot.run(gpu, begun, ns)).collect::<Vec<_>>();
    slot.set_idle(gpu);
    spans.iter().for_each(|(start, end)| println!("{start} {end}"));
    Ok(())
}

fn index(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&gpu| gpu < simgpu_device::MAX_GPUS).ok_or_else(|| format!("{text}: expected a GPU index"))
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
                "  pid={} used={} hidden={} utilization={} busy_ns={} slice_ns={} copy_slice_ns={} off={} times_off={}",
                process.pid,
                process.used,
                process.hidden,
                process.utilization,
                process.busy_ns,
                process.slice_ns,
                process.copy_slice_ns,
                u32::from(process.is_off),
                process.times_off
            );
        }
    }
}
