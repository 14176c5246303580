//! Containers that were promised more memory than the simulated GPU has: those that are idle make room for those that work.

mod common;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use common::{Monitor, stdout, vgpu, wait_for};
use vgpu_e2e::{Fill, Kit, Machine, Running, Way, host};
use vgpu_region::map;
use vgpu_test_harness::{Host, Runtime, can_run};

/// Memory limit of a container in MiB. The GPU has 512, of which each context takes 64.
const LIMIT: &str = "448";

/// Starts a container that checks each word of up to 288 MiB, which it fills and frees at random.
fn tenant(host: &Host, machine: &Machine, is_evictable: bool) -> Running {
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", LIMIT);
    let bundle = if is_evictable { bundle.annotation("nvidia.com/gpumem-evictable", "true") } else { bundle };
    let program = ["/programs/moves", "--child", "--threads", "1", "--blocks", "9", "--largest", "32M"];
    let mut running = Way::Wrapper.start(host, bundle.args(&program));
    assert_eq!(running.line(), "ready");
    running
}

/// Returns whether a container's memory has moved to the host at least once. Its room is free a moment before it says so.
fn has_moved(host: &Host, running: &Running) -> bool {
    let path = host.state_dir().join("containers").join(&running.id).join("region");
    let region = map::region(&CString::new(path.as_os_str().as_bytes()).unwrap()).unwrap();
    let has_moved = region.used_slots().any(|(_, slot)| slot.left.load(Relaxed) != 0);
    // SAFETY: the mapping is not used below.
    unsafe { map::unmap(region) };
    has_moved
}

/// Returns what the metrics say of a container's moves in a direction: their number, bytes, and seconds.
fn moves(monitor: &Monitor, id: &str, direction: &str) -> Option<[f64; 3]> {
    let (text, direction) = (monitor.get("/metrics"), format!("direction=\"{direction}\""));
    let figure = |name: &str| {
        let name = format!("vgpu_memory_{name}_total{{");
        let line = text.lines().find(|line| line.starts_with(&name) && line.contains(id) && line.contains(&direction))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    Some([figure("moves")?, figure("moved_bytes")?, figure("move_seconds")?])
}

/// Ends a container's work, and returns what it printed.
fn end(mut running: Running) -> String {
    running.say("end");
    let line = running.line();
    running.say("end");
    assert!(running.finish(), "{line}");
    line
}

/// A host whose policy lets memory be promised twice, and a small GPU.
fn overcommitted() -> Option<(Host, Machine)> {
    if !can_run(Runtime::Runc) {
        return None;
    }
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=512M", "reserved=0", "baseline=0", "context=64M", "context_hidden=0"]);
    let host = host(&kit, Runtime::Runc);
    host.policy("[overcommit]\nenabled = true");
    Some((host, machine))
}

#[test]
fn a_program_gets_its_whole_limit_while_others_are_idle() {
    for api in ["cuMemAlloc", "expandable"] {
        let Some((host, machine)) = overcommitted() else { return };
        let _monitor = Monitor::start(&host, &machine);
        let limited = || machine.bundle().annotation("nvidia.com/gpumem", LIMIT).annotation("nvidia.com/gpumem-evictable", "true");
        let fill = ["/programs/fill", "--api", api, "--chunk", "16M", "--max", "4G"];
        let mut idle = Way::Wrapper.start(&host, limited().args(&[&fill[..], &["--hold", "600"]].concat()));
        let first = Fill::of(&idle.line());
        let outcome = Way::Wrapper.run(&host, limited().args(&fill));
        let second = Fill::of(&outcome.stdout);
        assert_eq!((first.obtained, second.obtained), (384 << 20, 384 << 20), "{outcome:#?}");
        wait_for("the idle container has moved", || has_moved(&host, &idle).then_some(()));
    }
}

#[test]
fn tenants_that_do_not_fit_together_all_get_on() {
    let Some((host, machine)) = overcommitted() else { return };
    let monitor = Monitor::start(&host, &machine);
    let tenants = [true, true, true].map(|is_evictable| tenant(&host, &machine, is_evictable));
    wait_for("each has moved", || tenants.iter().all(|tenant| has_moved(&host, tenant)).then_some(()));
    let id = &tenants[0].id;
    for direction in ["out", "in"] {
        wait_for("the metrics have its moves", || {
            moves(&monitor, id, direction).filter(|figures| figures.iter().all(|&figure| figure > 0.0))
        });
    }
    let shown: serde_json::Value = serde_json::from_str(&stdout(vgpu(&host, &machine).args(["show", "--json", id]))).unwrap();
    let share = &shown["containers"][0]["gpus"][0];
    assert!(share["moved_out"].is_u64(), "{share}");
    for (moves, figure) in ["moves_out", "moves_in"].iter().flat_map(|moves| ["count", "bytes", "took_ns"].map(|figure| (moves, figure))) {
        assert!(share[moves][figure].as_u64() > Some(0), "{moves} {figure}: {share}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    for name in ["memory to the host", "memory to the GPU"] {
        wait_for("a trace has a move", || {
            stdout(vgpu(&host, &machine).args(["trace", id, "--seconds", "2", "-o"]).arg(&file));
            std::fs::read_to_string(&file).unwrap().contains(name).then_some(())
        });
    }
    for tenant in tenants {
        println!("{}", end(tenant));
    }
}

/// The GPU has 512 MiB, of which two contexts take 128: more than 384 never fit. The other container works all the time, and comes back as
/// soon as it may.
#[test]
fn what_can_never_fit_is_refused_while_others_work_on() {
    let Some((host, machine)) = overcommitted() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let other = tenant(&host, &machine, true);
    let limited = || machine.bundle().annotation("nvidia.com/gpumem", "512").annotation("nvidia.com/gpumem-evictable", "true");
    let outcome = Way::Wrapper.run(&host, limited().args(&["/programs/fill", "--chunk", "416M", "--max", "416M"]));
    let filled = Fill::of(&outcome.stdout);
    assert_eq!(filled.obtained, 0, "{outcome:#?}");
    // What fits is still met: the other one makes room for it.
    let outcome = Way::Wrapper.run(&host, limited().args(&["/programs/fill", "--chunk", "256M", "--max", "256M"]));
    assert_eq!(Fill::of(&outcome.stdout).obtained, 256 << 20, "{outcome:#?}");
    wait_for("the other container has moved", || has_moved(&host, &other).then_some(()));
    println!("{}", end(other));
}

/// A container that has only a context cannot make room. The arbiter finds that out, and goes on with the next one.
#[test]
fn a_tenant_that_has_nothing_to_move_is_no_obstacle() {
    let Some((host, machine)) = overcommitted() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let limited = || machine.bundle().annotation("nvidia.com/gpumem", LIMIT).annotation("nvidia.com/gpumem-evictable", "true");
    let fill = |arguments: &[&str]| limited().args(&[&["/programs/fill"], arguments].concat());
    // Small allocations share granules, and stay.
    let mut small = Way::Wrapper.start(&host, fill(&["--chunk", "1M", "--max", "16M", "--hold", "600"]));
    assert_eq!(Fill::of(&small.line()).obtained, 16 << 20);
    let mut large = Way::Wrapper.start(&host, fill(&["--chunk", "16M", "--max", "240M", "--hold", "600"]));
    assert_eq!(Fill::of(&large.line()).obtained, 240 << 20);
    let outcome = Way::Wrapper.run(&host, fill(&["--chunk", "16M", "--max", "240M"]));
    assert_eq!(Fill::of(&outcome.stdout).obtained, 240 << 20, "{outcome:#?}");
    wait_for("the large container has moved", || has_moved(&host, &large).then_some(()));
}

/// Containers are killed at any moment, also in the middle of moves, and others start in their place.
#[test]
fn killed_tenants_leave_the_others_right() {
    let Some((host, machine)) = overcommitted() else { return };
    let _monitor = Monitor::start(&host, &machine);
    let mut tenants: Vec<Running> = (0..3).map(|_| tenant(&host, &machine, true)).collect();
    for round in 0..9 {
        wait_for("a tenant has moved", || tenants.iter().any(|tenant| has_moved(&host, tenant)).then_some(()));
        std::thread::sleep(Duration::from_millis(37 * round));
        drop(tenants.remove(0));
        tenants.push(tenant(&host, &machine, true));
    }
    for tenant in tenants {
        println!("{}", end(tenant));
    }
    assert_eq!(machine.held(0).processes, [], "memory on the GPU after all have ended");
}

#[test]
fn memory_is_not_promised_twice_unless_the_policy_says_so() {
    let Some((host, machine)) = overcommitted() else { return };
    host.policy("");
    let bundle = machine.bundle().annotation("nvidia.com/gpumem", LIMIT).annotation("nvidia.com/gpumem-evictable", "true");
    let refused = Way::Wrapper.run(&host, bundle.args(&["true"]));
    let output = refused.log + &refused.stderr;
    assert!(
        !refused.status.success() && output.contains("nvidia.com/gpumem-evictable") && output.contains("overcommit.enabled"),
        "{output}"
    );
}
