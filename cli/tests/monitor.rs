//! `vgpu monitor`, `vgpu set` and `vgpu show` with real containers on the simulated GPU.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Monitor, ready, stdout, vgpu, wait_for};
use vgpu_e2e::{Fill, MIB, Machine, Running, Way};
use vgpu_test_harness::Host;

/// Checks the metrics with promtool, if it is installed.
fn check_with_promtool(response: &str) {
    let Some((_, text)) = response.split_once("\r\n\r\n") else { panic!("{response}") };
    let Ok(mut promtool) = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        return eprintln!("SKIPPED: promtool is not installed (package prometheus)");
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    // HAMi defines the names hami_*; promtool's opinion of them does not matter.
    let findings = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<&str> = findings.lines().filter(|line| !line.starts_with("hami_")).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// Starts a container with 1024 MiB that allocates and holds 256 MiB.
fn holder(host: &Host, machine: &Machine) -> (Running, Fill) {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
    let bundle = bundle.env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/shared.cache");
    let mut running = Way::Wrapper.start(host, bundle.args(&["/programs/fill", "--chunk", "16M", "--max", "256M", "--hold", "600"]));
    let fill = Fill::of(&running.line());
    (running, fill)
}

#[test]
fn reports_agree_with_nvml_and_the_program() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let (running, fill) = holder(&host, &machine);
    let held = fill.obtained + fill.context.unwrap();
    let value = |name: &str| monitor.value(name, &running.id);
    wait_for("the monitor finds the process", || value("vgpu_memory_held_bytes").filter(|bytes| *bytes == held as f64));
    assert_eq!(value("vgpu_memory_limit_bytes"), Some((1024 * MIB) as f64));
    assert_eq!(value("vgpu_compute_limit_ratio"), Some(0.3));
    assert_eq!(value("vgpu_processes"), Some(1.0));
    let charged = value("vgpu_memory_charged_bytes").unwrap();
    assert!((charged - held as f64).abs() <= (2 * MIB) as f64, "{charged} charged, {held} held");
    assert_eq!(value("hami_vgpu_memory_used_bytes"), Some(charged.max(held as f64)));
    wait_for("all parts go on", || monitor.get("/healthz").starts_with("HTTP/1.1 200").then_some(()));
    assert!(monitor.get("/x").starts_with("HTTP/1.1 404"));
    check_with_promtool(&monitor.get("/metrics"));

    let report: serde_json::Value = serde_json::from_str(&stdout(vgpu(&host, &machine).args(["show", "--json"]))).unwrap();
    let share = &report["containers"][0]["gpus"][0];
    assert_eq!((share["held"].as_u64(), share["memory_limit"].as_u64()), (Some(held), Some(1024 * MIB)));
    assert_eq!(share["processes"][0]["name"], "fill");

    let top = stdout(vgpu(&host, &machine).args(["top", "--once"]));
    assert!(top.starts_with("GPU 0") && top.contains("774Mi/1Gi") && top.contains("/30%"), "{top}");

    // HAMi's region, through the container's own root.
    let init = report["containers"][0]["init"].as_u64().unwrap();
    let region = wait_for("HAMi's region", || {
        std::fs::read(format!("/proc/{init}/root/tmp/shared.cache")).ok().filter(|bytes| bytes.starts_with(&19_920_718_u32.to_le_bytes()))
    });
    let long = |at: usize| u64::from_le_bytes(region[at..at + 8].try_into().unwrap());
    assert_eq!((region.len(), long(56), long(1600), long(1728)), (2_008_952, 1, 1024 * MIB, 30));
    let total = long(1856 + 8 + 32);
    assert!(total.abs_diff(held) <= 2 * MIB, "{total} in HAMi's region, {held} held");

    // A change applies at once. A limit below the memory held is reported, but is no violation.
    let set = |args: &[&str]| stdout(vgpu(&host, &machine).arg("set").arg(&running.id[..running.id.len() - 1]).args(args));
    assert!(set(&["--gpumem", "2Gi", "--gpucores", "50"]).contains("2Gi, 50% of the GPU's time"));
    wait_for("the metric shows the change", || value("vgpu_memory_limit_bytes").filter(|bytes| *bytes == (2048 * MIB) as f64));
    let lowered = set(&["--gpumem", "600"]);
    assert!(lowered.contains("600Mi") && lowered.contains("allocations fail until it frees"), "{lowered}");
    wait_for("the metric shows the change", || value("vgpu_memory_limit_bytes").filter(|bytes| *bytes == (600 * MIB) as f64));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(value("vgpu_violations_total"), Some(0.0));
}

#[test]
fn charged_gpu_time_is_what_the_program_used() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "30");
    let mut running = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", "/simgpu/spin --ns 1000000 --seconds 4; exec sleep 600"]));
    let metric = |name: &str| monitor.value(name, &running.id);
    wait_for("the monitor sees GPU time", || {
        metric("hami_container_device_utilization_ratio").or(metric("vgpu_gpu_seconds_total")).filter(|value| *value > 0.0)
    });
    let line = running.line();
    let values: Vec<f64> = line.split(' ').map(|value| value.parse().unwrap()).collect();
    let [_kernels, wall, share] = values[..] else { panic!("{line}") };
    wait_for("all GPU time is charged", || {
        let part = monitor.value("vgpu_gpu_seconds_total", &running.id)? * 1e9 / wall;
        println!("charged {part:.4} of the time, used {share:.4}");
        Some(()).filter(|()| (part - share).abs() <= 0.01)
    });
    assert!(monitor.value("vgpu_throttled_seconds_total", &running.id) > Some(0.0));
    assert!(monitor.value("hami_container_last_kernel_elapsed_seconds", &running.id).is_some());
}

#[test]
fn tenants_of_one_gpu_take_turns() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let busy = || {
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "50");
        Way::Wrapper.start(&host, bundle.args(&["/simgpu/spin", "--ns", "1000000", "--seconds", "600"]))
    };
    let both = [busy(), busy()];
    for running in &both {
        wait_for("turns change", || monitor.value("vgpu_turn_changes_total", &running.id).filter(|turns| *turns > 4.0));
    }
}

/// Script of a bypass: a dynamic loader that ignores /etc/ld.so.preload, and the driver's own library.
const BYPASS: &str = r"sed 's#/etc/ld.so.preload#/etc/ld.so.nothing#' /lib64/ld-linux-x86-64.so.2 > /tmp/ld && chmod 755 /tmp/ld && \
    exec /tmp/ld --library-path /usr/local/vgpu/driver:/simgpu /programs/fill --chunk 64M --max 2G --hold 600";

#[test]
fn only_the_process_that_bypasses_is_killed() {
    let Some((_kit, machine, host)) = ready() else { return };
    host.policy("on_violation = \"kill\"\nviolation_grace_seconds = 1");
    let monitor = Monitor::start(&host, &machine);
    let (limited, _) = holder(&host, &machine);
    // Neither a program in a nested PID namespace nor one without a container is killed.
    let fill = ["/programs/fill", "--chunk", "64M", "--max", "256M", "--hold", "600"];
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024").annotation("nvidia.com/gpucores", "30");
    let mut nested = Way::Wrapper.start(&host, bundle.args(&[&["/usr/bin/unshare", "-Urpf"], &fill[..]].concat()));
    assert_eq!(Fill::of(&nested.line()).obtained, 256 * MIB);
    let mut outside = machine.program("fill").args(&fill[1..]).stdout(Stdio::piped()).spawn().unwrap();
    let _ = BufReader::new(outside.stdout.as_mut().unwrap()).read_line(&mut String::new());
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024");
    let mut bypassing = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", BYPASS]));
    let fill = Fill::of(&bypassing.line());
    assert_eq!(fill.obtained, 2048 * MIB, "the bypass works");
    let lines = monitor.wait_for_log("ended process");
    assert!(lines.iter().any(|line| line.contains("holds more memory than allowed") && line.contains(&bypassing.id)), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains(&limited.id) && !line.contains(&nested.id)), "{lines:#?}");
    assert!(!bypassing.finish(), "it was killed");
    for id in [&limited.id, &nested.id] {
        let value = |name: &str| monitor.value(name, id);
        assert_eq!((value("vgpu_violations_total"), value("vgpu_processes_ended_total")), (Some(0.0), Some(0.0)));
        assert_eq!(value("vgpu_processes"), Some(1.0));
    }
    assert_eq!(outside.try_wait().unwrap(), None, "a process without a container is left alone");
    let _ = outside.kill();
    let _ = outside.wait();
    assert!(stdout(vgpu(&host, &machine).args(["show", &limited.id])).contains("1Gi"));
}

#[test]
fn a_bypass_is_only_reported_by_default() {
    let Some((_kit, machine, host)) = ready() else { return };
    let monitor = Monitor::start(&host, &machine);
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "1024");
    let mut bypassing = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", BYPASS]));
    let _ = bypassing.line();
    let start = Instant::now();
    let lines = monitor.wait_for_log("bypasses the library");
    println!("reported after {:?}", start.elapsed());
    assert!(lines.iter().any(|line| line.contains(&bypassing.id)), "{lines:#?}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(monitor.value("vgpu_processes_ended_total", &bypassing.id), Some(0.0));
    assert_eq!(monitor.value("vgpu_processes", &bypassing.id), Some(1.0));
}

#[test]
fn running_programs_see_lower_and_higher_limits() {
    let Some((_kit, machine, host)) = ready() else { return };
    let (running, fill) = holder(&host, &machine);
    assert_eq!(fill.obtained, 256 * MIB);
    let set = |args: &[&str]| stdout(vgpu(&host, &machine).args(["set", &running.id]).args(args));
    let more = || {
        let mut exec = host.command();
        exec.args(["exec", &running.id, "/programs/fill", "--chunk", "16M", "--max", "1G"]);
        Fill::of(&host.outcome(&mut exec).stdout).obtained
    };
    set(&["--gpumem", "600"]);
    assert_eq!(more(), 0, "the container is over its limit");
    set(&["--gpumem", "4Gi"]);
    assert_eq!(more(), 1024 * MIB);
    set(&["--gpumem", "1600"]);
    let some = more();
    assert!(0 < some && some < 1024 * MIB, "{some}");

    let mut busy = host.command();
    busy.args(["exec", &running.id, "/simgpu/spin", "--ns", "1000000", "--seconds", "600"]);
    let mut busy = busy.stdout(Stdio::null()).spawn().unwrap();
    set(&["--gpumem", "none"]);
    let used = || {
        let report: serde_json::Value = serde_json::from_str(&stdout(vgpu(&host, &machine).args(["show", "--json", &running.id]))).unwrap();
        report["containers"][0]["gpus"][0]["utilization"].as_f64().unwrap()
    };
    for (cores, low, high) in [("30", 15.0, 45.0), ("80", 60.0, 100.0), ("20", 5.0, 35.0)] {
        set(&["--gpucores", cores]);
        wait_for(&format!("about {cores}% of the GPU's time"), || Some(used()).filter(|used| (low..high).contains(used)));
    }
    let _ = host.outcome(host.bare_command().args(["delete", "--force", &running.id]));
    let _ = busy.kill();
    let _ = busy.wait();
}

/// The program allocates and launches all the time. Its next allocation fails when the limit is lowered below the memory
/// held, and succeeds when it is raised.
#[test]
fn a_change_applies_to_the_next_call_under_load() {
    let Some((_kit, machine, host)) = ready() else { return };
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2048").annotation("nvidia.com/gpucores", "50");
    let mut running = Way::Wrapper.start(&host, bundle.args(&["/programs/changes", "--chunk", "16M", "--max", "6G"]));
    let mut next = |word: &str| {
        // Kernels in between show that the other thread keeps running.
        let mut kernels = 0;
        loop {
            let line = running.line();
            let mut words = line.split(' ');
            match words.next() {
                Some("kernel") => kernels += 1,
                Some(first) if first == word => return (kernels, words.next_back().and_then(|bytes| bytes.parse::<u64>().ok()).unwrap()),
                Some("grew" | "refused" | "full") => {}
                _ => panic!("{line:?}"),
            }
        }
    };
    let (_, full) = next("full");
    assert!(full < 2048 * MIB);
    let id = host.containers()[0].file_name().unwrap().to_string_lossy().into_owned();
    let set = |gpumem: &str| stdout(vgpu(&host, &machine).args(["set", &id, "--gpumem", gpumem, "--gpucores", "60"]));
    assert!(set("1024").contains("allocations fail until it frees"));
    let (_, held) = next("refused");
    // The program freed one chunk, and could not allocate it again.
    assert!(held < 2048 * MIB, "{held}");
    set("4096");
    while next("grew").1 <= full + 1024 * MIB {}
    set("2048");
    let (_, held) = next("refused");
    assert!(held > full, "{held}");
    let _ = host.outcome(host.bare_command().args(["delete", "--force", &id]));
}

/// Processes start and exit as fast as possible in a container near its limit, under a policy without a grace period.
/// VGPU_TEST_CHURN is the number of processes (default: 400); the test is designed for 10,000.
#[test]
fn processes_that_do_not_bypass_are_never_killed() {
    let Some((_kit, machine, host)) = ready() else { return };
    host.policy("on_violation = \"kill\"\nviolation_grace_seconds = 0");
    let monitor = Monitor::start(&host, &machine);
    let count = std::env::var("VGPU_TEST_CHURN").ok().and_then(|count| count.parse().ok()).unwrap_or(400_u32);
    // Three short processes and a longer one at a time, each with a context: they fill the container, and allocations often fail.
    let script = format!(
        "one() {{ /programs/fill --chunk 64M --max 512M $1 $2 >/tmp/output.$3; [ $? -gt 100 ] && echo killed; grep -q 'obtained.:[1-9]' /tmp/output.$3; }}
         many() {{ n=0; got=0; while [ $n -lt {} ]; do one --hold 0 $1 && got=$((got+1)); n=$((n+1)); done; echo $got >/tmp/got.$1; }}
         stay() {{ while [ ! -e /tmp/done ]; do one --hold 2 4; done; }}
         stay & s=$!; many 1 & a=$!; many 2 & b=$!; many 3 & wait $a $b $!; touch /tmp/done; wait $s; echo got $(cat /tmp/got.*)",
        count / 3
    );
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", "2500").annotation("nvidia.com/gpucores", "50");
    let mut running = Way::Wrapper.start(&host, bundle.args(&["/bin/sh", "-c", &script]));
    let mut worst = 0.0_f64;
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| running.line());
        while !reader.is_finished() {
            let text = monitor.get("/metrics");
            let violations = text.lines().filter(|line| line.starts_with("vgpu_violations_total{"));
            worst = violations.filter_map(|line| line.rsplit(' ').next()?.trim().parse::<f64>().ok()).fold(worst, f64::max);
            std::thread::sleep(Duration::from_millis(200));
        }
        reader.join().unwrap()
    });
    println!("{reader}");
    let got: Vec<u32> =
        reader.strip_prefix("got ").map(|got| got.split(' ').filter_map(|got| got.parse().ok()).collect()).unwrap_or_default();
    assert_eq!((got.len(), worst), (3, 0.0), "{reader} {:?}", monitor.lines.try_iter().collect::<Vec<_>>());
    assert!(got.iter().all(|got| *got > 0), "{got:?}");
}
