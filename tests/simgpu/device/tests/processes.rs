//! Several processes share one machine; resources of dead processes are reclaimed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use simgpu_device::{Config, Device};

const MIB: u64 = 1 << 20;

/// Machine of one test.
struct Machine {
    _folder: tempfile::TempDir,
    path: PathBuf,
    device: Device,
}

fn machine(settings: &[(&str, &str)]) -> Machine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu");
    let mut config = Config::default();
    for (name, value) in settings {
        config.set(name, value).unwrap();
    }
    Device::create(&path, &config).unwrap();
    let device = Device::open(&path).unwrap();
    Machine { _folder: folder, path, device }
}

/// `simgpu-ctl` process that has printed its first line.
struct Tenant {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

fn tenant(path: &Path, arguments: &[&str], first_line: &str) -> Tenant {
    let mut command = Command::new(env!("CARGO_BIN_EXE_simgpu-ctl"));
    command.args(arguments).env("SIMGPU_STATE", path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), first_line);
    let input = process.stdin.take();
    Tenant { process, input, output }
}

impl Tenant {
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn memory_of_a_killed_process_is_reclaimed_and_in_no_later_peak() {
    let machine = machine(&[("total", "2G")]);
    let baseline = machine.device.memory(0).used;
    let first = tenant(&machine.path, &["hold", "0", "1000000000"], "held");
    let second = tenant(&machine.path, &["hold", "0", "100"], "held");
    assert_eq!(machine.device.memory(0).used, baseline + 1_000_000_100);
    let pids = machine.device.processes(0).iter().map(|process| (process.pid, process.used)).collect::<Vec<_>>();
    assert!(pids.contains(&(first.process.id(), 1_000_000_000)) && pids.contains(&(second.process.id(), 100)) && pids.len() == 2);

    first.kill();
    let third = tenant(&machine.path, &["hold", "0", "1000000001"], "held");
    assert_eq!(machine.device.peak(0), 1_000_000_101, "memory of the dead process is not in the peak");
    second.end();
    third.end();
    assert_eq!(machine.device.memory(0).used, baseline);
    assert_eq!(machine.device.processes(0), []);
}

#[test]
fn allocation_that_does_not_fit_is_refused_without_side_effects() {
    let machine = machine(&[("total", "1G"), ("reserved", "0"), ("baseline", "0")]);
    let first = tenant(&machine.path, &["hold", "0", &(600 * MIB).to_string()], "held");
    let refused = Command::new(env!("CARGO_BIN_EXE_simgpu-ctl"))
        .args(["hold", "0", &(425 * MIB).to_string()])
        .env("SIMGPU_STATE", &machine.path)
        .output()
        .unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
    let second = tenant(&machine.path, &["hold", "0", &(424 * MIB).to_string()], "held");
    assert_eq!(machine.device.memory(0).free, 0);
    first.end();
    second.end();
}

#[test]
fn groups_have_their_own_peaks() {
    let machine = machine(&[("gpus", "2")]);
    let outer = tenant(&machine.path, &["hold", "1", "5000"], "held");
    let mut command = Command::new(env!("CARGO_BIN_EXE_simgpu-ctl"));
    command.args(["hold", "1", "300"]).env("SIMGPU_STATE", &machine.path).env("SIMGPU_GROUP", "small").stdin(Stdio::null());
    assert!(command.status().unwrap().success());
    assert_eq!(machine.device.group_peak("small", 1), 300);
    assert_eq!((machine.device.peak(0), machine.device.peak(1)), (0, 5300));
    machine.device.reset();
    assert_eq!((machine.device.peak(1), machine.device.group_peak("small", 1)), (5000, 0));
    outer.end();
}

fn spans(tenant: &mut Tenant) -> Vec<(u64, u64)> {
    let lines = (&mut tenant.output).lines().map(Result::unwrap);
    lines.map(|line| line.split_once(' ').map(|(start, end)| (start.parse().unwrap(), end.parse().unwrap())).unwrap()).collect()
}

#[test]
fn processes_share_the_gpu_by_time_slices() {
    let machine = machine(&[("slice_ns", "3000000"), ("switch_ns", "100000")]);
    let mut tenants = [(); 2].map(|()| tenant(&machine.path, &["work", "0", "1000000", "30"], "ready"));
    for tenant in &mut tenants {
        tenant.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    let [first, second] = tenants.each_mut().map(spans);
    for spans in [&first, &second] {
        assert_eq!(spans.len(), 30);
        assert!(spans.iter().all(|(start, end)| end - start >= 1_000_000));
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "operations of one process overlap");
    }
    let (all_start, all_end) = (first[0].0.min(second[0].0), first[29].1.max(second[29].1));
    assert!(all_end - all_start >= 60_000_000, "60 ms of work took {} ns", all_end - all_start);
    assert!(first[0].0 < second[29].1 && second[0].0 < first[29].1, "one process waited for the other to end");
    tenants.into_iter().for_each(Tenant::end);
}

#[test]
fn gpu_of_a_killed_owner_is_reassigned() {
    let machine = machine(&[]);
    let mut hog = tenant(&machine.path, &["work", "0", "3600000000000", "1"], "ready");
    hog.input.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut other = tenant(&machine.path, &["work", "0", "1000", "1"], "ready");
    other.input.as_mut().unwrap().write_all(b"\n").unwrap();
    assert_eq!(spans(&mut other).len(), 1, "a kernel of an hour is preempted");
    hog.kill();
    let mut next = tenant(&machine.path, &["work", "0", "1000", "1"], "ready");
    next.input.as_mut().unwrap().write_all(b"\n").unwrap();
    assert_eq!(spans(&mut next).len(), 1);
    next.end();
    other.end();
}
