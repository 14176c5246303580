//! The GPU's scheduler under the arbiter: the library switches its process's channels off and on, and sets their time slice.
//!
//! Shares are measured from outside, on the simulated GPU's own clock. Their bounds are wide: they tell a share from none and from all.

mod common;

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use common::{Monitor, ready, signal, wait_for};
use serde_json::json;
use vgpu_e2e::{Kit, Machine, Running, Way, host};
use vgpu_test_harness::{Bundle, Host, Runtime, can_run};

/// Words of the log line about a driver that refuses the controls.
const REFUSAL: &str = "scheduler cannot be told";
/// The machine's own time slice, in ns.
const OWN_SLICE: u64 = 2_250_000;
/// Time for which shares are measured.
const MEASURED: Duration = Duration::from_secs(3);

/// What the simulated GPU shows of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    pid: u32,
    busy_ns: u64,
    slice_ns: u64,
    is_off: bool,
    times_off: u64,
    /// Longest time slice of its copies, ns.
    copy_slice_ns: u64,
}

/// Returns the processes that the simulated GPU shows.
fn processes(machine: &Machine) -> Vec<Process> {
    let text = machine.show();
    let lines = text.lines().filter(|line| line.starts_with("  pid="));
    let read = |line: &str| {
        let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
        let number = |name: &str| field(name).unwrap_or_else(|| panic!("{name}: {line}"));
        Process {
            pid: number("pid") as u32,
            busy_ns: number("busy_ns"),
            slice_ns: number("slice_ns"),
            is_off: number("off") == 1,
            times_off: number("times_off"),
            copy_slice_ns: number("copy_slice_ns"),
        }
    };
    lines.map(read).collect()
}

/// Running container whose processes have its name in their environment.
struct Tenant<'a> {
    machine: &'a Machine,
    name: &'static str,
    running: Running,
}

impl<'a> Tenant<'a> {
    /// Starts the program `tenant` in a container with this compute limit, and waits for its first kernel.
    fn start(host: &Host, machine: &'a Machine, name: &'static str, cores: &str, arguments: &str) -> Self {
        Self::start_in(machine.bundle(), host, machine, name, cores, &format!("exec /programs/tenant {arguments}")).wait()
    }

    /// Starts a shell script in a bundle with this compute limit. Its stderr goes to a file.
    fn start_in(bundle: Bundle, host: &Host, machine: &'a Machine, name: &'static str, cores: &str, script: &str) -> Self {
        let bundle = bundle.annotation("nvidia.com/gpumem", "4096").env("TENANT", name);
        let bundle = if cores.is_empty() { bundle } else { bundle.annotation("nvidia.com/gpucores", cores) };
        let running = Way::Wrapper.start(host, bundle.shell(&format!("exec 2>/tmp/errors; {script}")));
        Self { machine, name, running }
    }

    /// Waits for the first kernel.
    fn wait(mut self) -> Self {
        let line = self.running.line();
        assert_eq!(line, "working", "{}: {}", self.name, self.errors());
        self
    }

    /// Returns what the simulated GPU shows of the container's only process on it.
    fn process(&self) -> Process {
        wait_for("the GPU shows the process", || {
            let is_own = |process: &Process| {
                let words = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
                words.split(|byte| *byte == 0).any(|word| word == format!("TENANT={}", self.name).as_bytes())
            };
            processes(self.machine).into_iter().find(is_own)
        })
    }

    /// Returns the container's stderr.
    fn errors(&self) -> String {
        read_to_string(self.running.bundle.rootfs().join("tmp/errors")).unwrap_or_default()
    }

    /// Waits until the process was switched off more often than it has been.
    fn is_switched(&self) {
        let before = self.process().times_off;
        wait_for(&format!("{} is switched off", self.name), || (self.process().times_off > before + 2).then_some(()));
    }
}

/// Returns the parts of the GPU's time that tenants get in the next seconds.
fn shares<const N: usize>(tenants: [&Tenant<'_>; N]) -> [f64; N] {
    let (begun, before) = (Instant::now(), tenants.map(|tenant| tenant.process().busy_ns));
    std::thread::sleep(MEASURED);
    let passed = begun.elapsed().as_nanos() as f64;
    let mut place = 0;
    let shares = tenants.map(|tenant| {
        place += 1;
        (tenant.process().busy_ns - before[place - 1]) as f64 / passed
    });
    println!("{:?}: {shares:.3?}", tenants.map(|tenant| tenant.name));
    shares
}

/// Measures until the tenants have such parts of the GPU's time: on a loaded machine they, and the arbiter, may be late for seconds.
fn wait_for_shares<const N: usize>(tenants: [&Tenant<'_>; N], expected: impl Fn([f64; N]) -> bool) {
    wait_for("the tenants have their shares", || expected(shares(tenants)).then_some(()));
}

/// Waits until tenants with 30 and 70% have these parts of the GPU's time.
fn share(low: &Tenant<'_>, high: &Tenant<'_>) {
    wait_for_shares([low, high], |[low, high]| (0.2..0.4).contains(&low) && (0.55..0.85).contains(&high));
}

const BUSY: &str = "--ns 1000000 --seconds 600";

#[test]
fn busy_tenants_are_switched_and_interactive_ones_are_not() {
    let Some((_kit, machine, host)) = ready() else { return };
    let low = Tenant::start(&host, &machine, "low", "30", BUSY);
    let high = Tenant::start(&host, &machine, "high", "70", BUSY);
    let without: f64 = shares([&low, &high]).iter().sum();
    assert_eq!((low.process().times_off, high.process().times_off), (0, 0));
    // When the driver maps memory for others, they wait for one slice of a copy.
    assert_eq!((low.process().copy_slice_ns, high.process().copy_slice_ns), (100_000, 100_000));
    let _monitor = Monitor::start(&host, &machine);
    low.is_switched();
    high.is_switched();
    share(&low, &high);
    // The GPU does not lose a quarter of a millisecond at each of its own time slices.
    wait_for_shares([&low, &high], |with| with.iter().sum::<f64>() > without);

    let third = Tenant::start(&host, &machine, "third", "20", "periodic --ns 1000000 --every 50 --seconds 600");
    let has_short_slice = |tenant: &Tenant<'_>| tenant.process().slice_ns == 100_000;
    wait_for("short slices", || (has_short_slice(&low) && has_short_slice(&high)).then_some(()));
    // It takes turns until it is known.
    let times_off = third.process().times_off;
    low.is_switched();
    high.is_switched();
    wait_for_shares([&low, &high, &third], |[low, high, third]| low > 0.15 && high > 0.45 && third > 0.005);
    let third = third.process();
    assert_eq!((third.times_off, third.slice_ns), (times_off, OWN_SLICE));
}

/// The time for which a tenant's channels are off is none of its GPU time, and nothing else is refunded for it.
#[test]
fn limits_that_leave_a_part_of_the_gpu_hold_in_turns() {
    let Some((_kit, machine, host)) = ready() else { return };
    let tenants = ["first", "second", "third"].map(|name| Tenant::start(&host, &machine, name, "20", BUSY));
    let _monitor = Monitor::start(&host, &machine);
    let [first, second, third] = &tenants;
    tenants.iter().for_each(Tenant::is_switched);
    wait_for_shares([first, second, third], |parts| parts.iter().all(|part| (0.13..0.27).contains(part)));
}

#[test]
fn channels_are_on_again_without_the_arbiter() {
    let Some((_kit, machine, host)) = ready() else { return };
    let low = Tenant::start(&host, &machine, "low", "30", BUSY);
    let high = Tenant::start(&host, &machine, "high", "70", BUSY);
    let _third = Tenant::start(&host, &machine, "third", "20", "periodic --ns 1000000 --every 50 --seconds 600");
    for _ in 0..3 {
        let monitor = Monitor::start(&host, &machine);
        low.is_switched();
        high.is_switched();
        wait_for("short slices", || (low.process().slice_ns == 100_000).then_some(()));
        wait_for("its channels are off", || low.process().is_off.then_some(()));
        signal(monitor.pid(), "KILL");
        let begun = Instant::now();
        let is_own = |process: Process| !process.is_off && process.slice_ns == OWN_SLICE;
        wait_for("the GPU's own scheduler", || (is_own(low.process()) && is_own(high.process())).then_some(()));
        println!("on after {:?}", begun.elapsed());
        let before = low.process().times_off;
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(low.process().times_off, before, "its channels were switched without an arbiter");
    }
    // The supervisor starts an arbiter that is killed again.
    let monitor = Monitor::start(&host, &machine);
    for _ in 0..3 {
        low.is_switched();
        let before = wait_for("the arbiter runs", || monitor.parts().get("arbiter").copied());
        signal(before, "KILL");
        wait_for("another arbiter runs", || monitor.parts().get("arbiter").copied().filter(|after| *after != before));
    }
    low.is_switched();
    high.is_switched();
    assert!(!low.errors().contains(REFUSAL), "{}", low.errors());
}

/// The processes switch themselves on while the arbiter stands still, and follow it again at once.
#[test]
fn an_arbiter_that_was_late_is_followed_again() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let low = Tenant::start(&host, &machine, "low", "30", BUSY);
    let high = Tenant::start(&host, &machine, "high", "70", BUSY);
    low.is_switched();
    high.is_switched();
    let arbiter = monitor.parts()["arbiter"];
    for _ in 0..4 {
        signal(arbiter, "STOP");
        std::thread::sleep(Duration::from_millis(330));
        signal(arbiter, "CONT");
        share(&low, &high);
    }
    assert_eq!(monitor.parts()["arbiter"], arbiter);
}

/// Limits hold without the controls, and one line says so.
fn without_controls(properties: &[&str], adapt: impl Fn(Bundle) -> Bundle) {
    for runtime in [Runtime::Runc, Runtime::Crun].into_iter().filter(|runtime| can_run(*runtime)) {
        let kit = Kit::find();
        let (machine, host) = (Machine::simulated(&kit, properties), host(&kit, runtime));
        let start = |name, cores| {
            let script = format!("exec /programs/tenant {BUSY}");
            Tenant::start_in(adapt(machine.bundle()), &host, &machine, name, cores, &script).wait()
        };
        let monitor = Monitor::start(&host, &machine);
        let low = start("low", "30");
        wait_for("the refusal is logged", || low.errors().contains(REFUSAL).then_some(()));
        wait_for_shares([&low], |[alone]| (0.2..0.4).contains(&alone));
        let high = start("high", "70");
        wait_for("they take turns", || monitor.value("vgpu_turn_changes_total", &high.running.id).filter(|turns| *turns > 4.0));
        wait_for_shares([&low, &high], |[low, high]| (0.2..0.4).contains(&low) && (0.5..0.8).contains(&high));
        for tenant in [&low, &high] {
            assert_eq!((tenant.process().times_off, tenant.process().slice_ns), (0, OWN_SLICE));
            let errors = tenant.errors();
            assert_eq!(errors.lines().filter(|line| line.contains(REFUSAL)).count(), 1, "{errors}");
        }
    }
}

#[test]
fn limits_hold_where_the_driver_refuses_controls() {
    without_controls(&["refuse_controls=1"], |bundle| bundle);
}

#[test]
fn limits_hold_where_libcuda_makes_no_ioctls() {
    without_controls(&["no_ioctls=1"], |bundle| bundle);
}

#[test]
fn limits_hold_where_seccomp_refuses_controls() {
    without_controls(&[], |mut bundle| {
        // _IOWR('F', 0x2a, 32 bytes): a control of the resource manager.
        let control = json!({ "index": 1, "value": 0xc020_462a_u32, "op": "SCMP_CMP_EQ" });
        let rule = json!({ "names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [control] });
        bundle.spec["linux"]["seccomp"] =
            json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [rule] });
        bundle
    });
}

/// Runs a script in a container at 50% beside a busy neighbour at 50% whose turns alternate with its own. The script prints `done`. Afterwards
/// nothing of it is left, and a new process works and is switched.
fn ends(script: &str) {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let neighbour = Tenant::start(&host, &machine, "neighbour", "50", BUSY);
    let script = format!("{{ {script}; }} >/tmp/output; echo done $?; read x; exec /programs/tenant {BUSY}");
    let mut tenant = Tenant::start_in(machine.bundle(), &host, &machine, "tenant", "50", &script);
    let begun = Instant::now();
    let line = tenant.running.line();
    let output = read_to_string(tenant.running.bundle.rootfs().join("tmp/output")).unwrap();
    println!("{output}{} {line} after {:?}", tenant.errors(), begun.elapsed());
    assert_eq!(line, "done 0", "{output}{}", tenant.errors());
    wait_for("nothing is charged", || {
        monitor.value("vgpu_memory_charged_bytes", &tenant.running.id).filter(|bytes| *bytes == 0.0)?;
        (processes(&machine).len() == 1).then_some(())
    });
    assert!(neighbour.process().times_off > 0, "they took turns");
    tenant.running.say("go on");
    let tenant = tenant.wait();
    tenant.is_switched();
    neighbour.is_switched();
    wait_for_shares([&tenant, &neighbour], |both| both.iter().all(|share| (0.35..0.65).contains(share)));
}

/// Script that fails if the program hangs.
const TENANT: &str = "timeout 40 /programs/tenant";

#[test]
fn contexts_are_destroyed_while_channels_are_off() {
    ends(&format!("{TENANT} contexts --seconds 6"));
}

#[test]
fn processes_exit_while_channels_are_off() {
    let exits = format!("{TENANT} exits --ns 1000000 --seconds 1");
    ends(&format!("for i in 1 2 3 4 5; do {exits} && ! {exits} --kills || exit 1; done"));
}

#[test]
fn processes_fork_while_channels_are_off() {
    ends(&format!("{TENANT} forks --seconds 6 && {TENANT} forks-first --seconds 4"));
}

#[test]
fn stopped_processes_hold_up_nobody() {
    let Some((_kit, machine, host)) = ready() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let tenant = Tenant::start(&host, &machine, "tenant", "30", BUSY);
    let neighbour = Tenant::start(&host, &machine, "neighbour", "70", BUSY);
    for is_off in [true, false, true, false] {
        tenant.is_switched();
        neighbour.is_switched();
        let pid = tenant.process().pid;
        wait_for("it is in this state", || {
            (tenant.process().is_off == is_off).then(|| signal(pid, "STOP"))?;
            // It may have changed before the signal.
            if tenant.process().is_off == is_off {
                return Some(());
            }
            signal(pid, "CONT");
            None
        });
        wait_for_shares([&tenant, &neighbour], |[stopped, neighbour]| stopped < 0.1 && neighbour > 0.55);
        signal(pid, "CONT");
        tenant.is_switched();
        neighbour.is_switched();
        share(&tenant, &neighbour);
    }
}

#[test]
fn limits_hold_without_the_driver_s_descriptors() {
    let Some((_kit, machine, host)) = ready() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let neighbour = Tenant::start(&host, &machine, "neighbour", "70", BUSY);
    let mut tenant = Tenant::start(&host, &machine, "tenant", "30", "closes --ns 1000000 --seconds 6");
    let line = tenant.running.line();
    let share: f64 = line.split(' ').nth(2).and_then(|share| share.parse().ok()).unwrap_or_else(|| panic!("{line} {}", tenant.errors()));
    println!("{line} {}", tenant.errors());
    assert!((0.2..0.4).contains(&share), "{share} {}", tenant.errors());
    assert_eq!(tenant.errors().lines().filter(|line| line.contains(REFUSAL)).count(), 1, "{}", tenant.errors());
    wait_for_shares([&neighbour], |[share]| (0.6..0.8).contains(&share));
}

/// The descriptors are closed before the program starts, and its `ioctl` is not the C library's.
#[test]
fn programs_with_an_ioctl_of_their_own_are_switched() {
    let Some((_kit, machine, host)) = ready() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let neighbour = Tenant::start(&host, &machine, "neighbour", "70", BUSY);
    let script = "exec env LD_PRELOAD=/programs/ioctl.so /programs/tenant --ns 1000000 --seconds 8 3>&- 4>&- 5>&- 6>&-";
    let mut tenant = Tenant::start_in(machine.bundle(), &host, &machine, "tenant", "30", script).wait();
    tenant.is_switched();
    neighbour.is_switched();
    share(&tenant, &neighbour);
    let line = tenant.running.line();
    assert!(line.split(' ').count() == 3, "{line}");
    let calls =
        wait_for("the calls are counted", || tenant.errors().lines().find_map(|line| line.strip_prefix("ioctl ")?.parse::<u64>().ok()));
    assert!(calls > 20, "{calls} {}", tenant.errors());
}

/// The time for which a container is paused, or its processes are stopped, is not charged.
#[test]
fn frozen_time_is_not_charged() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let tenant = Tenant::start(&host, &machine, "tenant", "30", "--ns 300000 --seconds 600");
    let used = || monitor.value("vgpu_gpu_seconds_total", &tenant.running.id).unwrap_or_default();
    wait_for("its time is charged", || (used() > 0.5).then_some(()));
    let (mut charged, mut busy) = (0.0, 0);
    for pause in 0..12 {
        let process = tenant.process();
        let freeze = |is_frozen: bool| match pause % 2 {
            0 => signal(process.pid, if is_frozen { "STOP" } else { "CONT" }),
            _ => assert!(
                host.bare_command().args([if is_frozen { "pause" } else { "resume" }, &tenant.running.id]).status().unwrap().success()
            ),
        };
        let before = used();
        freeze(true);
        std::thread::sleep(Duration::from_secs(2));
        freeze(false);
        // Pauses begin at different moments of the limiter's bursts. The monitor reads the charges twice a second.
        std::thread::sleep(Duration::from_millis(1500 + 7 * pause));
        charged += used() - before;
        busy += tenant.process().busy_ns - process.busy_ns;
    }
    let busy = busy as f64 / 1e9;
    println!("charged {charged:.3} s, busy for {busy:.3} s");
    assert!(busy > 2.0 && charged < 1.2 * busy, "charged {charged} s, busy for {busy} s");
}
