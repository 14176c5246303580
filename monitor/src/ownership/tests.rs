use super::*;

fn process(cgroups: &[&str], pid_namespace: u64) -> Process {
    Process { cgroups: cgroups.iter().map(|&cgroup| cgroup.to_owned()).collect(), pid_namespace, ..Process::default() }
}

fn owners(inits: &[(&str, Option<Process>)]) -> ProcessOwners {
    let identities = inits
        .iter()
        .map(|(id, init)| {
            let made = if *id == "systemd" { vec!["/machine.slice/systemd.scope".to_owned()] } else { Vec::new() };
            Arc::new(Identity { id: (*id).to_owned(), init: init.clone().map(Arc::new), made, is_program: id.starts_with("run-") })
        })
        .collect();
    let dirs = inits.iter().map(|(id, _)| Path::new("/run/vgpu/containers").join(id).into_os_string()).collect();
    let this = process(&["/system.slice/vgpu-monitor.service"], 1);
    ProcessOwners { this, host_mounts: 500, ..ProcessOwners::default() }.with(dirs, identities)
}

#[test]
fn cgroups_decide_before_namespaces() {
    let owners = owners(&[
        ("a", Some(process(&["/pods/a"], 10))),
        ("ab", Some(process(&["/pods/ab"], 20))),
        ("nested", Some(process(&["/pods/a/docker/nested"], 30))),
        ("plain", Some(process(&["/"], 40))),
        ("host", Some(process(&["/"], 1))),
        ("twin1", Some(process(&["/"], 50))),
        ("twin2", Some(process(&["/"], 50))),
    ]);
    let cases = [
        ("the container's own cgroup", process(&["/pods/a"], 10), Some(0)),
        ("a child cgroup", process(&["/pods/a/x"], 10), Some(0)),
        ("a cgroup with a common prefix", process(&["/pods/ab"], 20), Some(1)),
        ("the innermost container wins", process(&["/pods/a/docker/nested/y"], 30), Some(2)),
        ("a program of the host in the container's cgroup", process(&["/pods/a"], 1), None),
        ("a nested namespace does not lead out", process(&["/pods/a"], 99), Some(0)),
        ("a namespace, without a cgroup", process(&["/"], 40), Some(3)),
        ("neither cgroup nor namespace", process(&["/"], 1), None),
        ("a namespace shared by two containers", process(&["/"], 50), None),
        ("a namespace whose container has a cgroup", process(&["/elsewhere"], 10), None),
        ("a process of the host", process(&["/system.slice/x"], 1), None),
        ("this process", process(&["/system.slice/vgpu-monitor.service"], 1), None),
    ];
    for (description, process, expected) in cases {
        assert_eq!(owners.container_of(&process), expected, "{description}");
    }
}

/// The container has the host's PID namespace and the cgroup of a user's session, in which other programs of the user run.
#[test]
fn programs_of_the_host_have_no_owner() {
    let of = |mount_namespace| Process { mount_namespace, ..process(&["/user.slice/session-1.scope"], 1) };
    let owners = owners(&[("shared", Some(of(600)))]);
    for (description, process, expected) in [
        ("a process of the container", of(600), Some(0)),
        ("one with a mount namespace of its own", of(700), Some(0)),
        ("a program of the host", of(500), None),
    ] {
        assert_eq!(owners.container_of(&process), expected, "{description}");
        assert_eq!(owners.is_in_container(&process, "shared"), expected.is_some(), "{description}");
    }
    assert!(!owners.is_in_container(&of(600), "other"));
}

/// The program has the namespaces of the host, and in all but one hierarchy the cgroup of its user's session.
#[test]
fn a_program_without_a_container_has_only_its_own_cgroup() {
    let program = Process { pid: 7, ..process(&["/user.slice/session-1.scope", "/user.slice/session-1.scope/vgpu-run-7-9"], 1) };
    let of_other_namespace = Process { pid: 8, ..process(&["/user.slice"], 5) };
    let owners = owners(&[("run-7-9", Some(program.clone())), ("run-8-9", Some(of_other_namespace.clone()))]);
    for (description, process, expected) in [
        ("its own process", program, Some(0)),
        ("a process in a cgroup below its own", process(&["/user.slice/session-1.scope/vgpu-run-7-9/x"], 1), Some(0)),
        ("another program of the session", process(&["/user.slice/session-1.scope"], 1), None),
        ("the first process of a program without a cgroup of its own", of_other_namespace, Some(1)),
        ("another process in its namespace", process(&["/user.slice"], 5), None),
        ("a cgroup named after it elsewhere", process(&["/elsewhere/vgpu-run-7-9"], 1), None),
    ] {
        assert_eq!(owners.container_of(&process), expected, "{description}");
    }
}

#[test]
fn containers_without_a_first_process_match_by_id() {
    let owners = owners(&[("c0ffee", None)]);
    for (cgroup, expected) in [
        ("/c0ffee", Some(0)),
        ("/system.slice/docker-c0ffee.scope", Some(0)),
        ("/kubepods/pod1/c0ffee/x", Some(0)),
        ("/kubepods.slice/cri-containerd-c0ffee.scope", Some(0)),
        ("/kubepods/pod1/c0ffee2", None),
        ("/system.slice/xc0ffee.scope", None),
        ("/x-c0ffee", None),
    ] {
        assert_eq!(owners.container_of(&process(&[cgroup], 2)), expected, "{cgroup}");
    }
}

/// A first process that writes cgroups, such as systemd's, moves itself below the container's own cgroup, and others beside it.
#[test]
fn a_container_has_all_cgroups_below_the_one_that_was_made_for_it() {
    let init = process(&["/machine.slice/systemd.scope/init.scope"], 10);
    let owners = owners(&[("systemd", Some(init.clone()))]);
    for (description, process, expected) in [
        ("the first process", init, Some(0)),
        ("a process in a cgroup beside it", process(&["/machine.slice/systemd.scope/system.slice/x"], 10), Some(0)),
        ("another container", process(&["/machine.slice/other.scope"], 20), None),
    ] {
        assert_eq!(owners.container_of(&process), expected, "{description}");
    }
}

#[test]
fn runtime_state_files_are_read() {
    let (this, mut processes) = (Process::read(std::process::id()).unwrap(), ProcessTable::default());
    let dir = tempfile::tempdir().unwrap();
    let init_from_runtime = |dir: &Path, processes: &mut ProcessTable| RuntimeState::read(dir)?.init(processes);
    let state = |text: &str| serde_json::from_str::<RuntimeState>(text).unwrap().cgroups();
    assert_eq!(state(r#"{"pid":1,"cgroup-path":"/machine.slice/x.scope/container"}"#), ["/machine.slice/x.scope/container"]);
    assert_eq!(state(r#"{"init_process_pid":1,"cgroup_paths":{"":"/sys/fs/cgroup/system.slice/x"}}"#), ["/system.slice/x"]);
    assert_eq!(state(r#"{"init_process_pid":1,"cgroup_paths":{"cpu":"/sys/fs/cgroup/cpu,cpuacct/docker/x"}}"#), ["/docker/x"]);
    assert_eq!(state(r#"{"pid":1,"cgroup-path":"/","cgroup_paths":{"cpu":"/sys/fs/cgroup/cpu","":"/elsewhere"}}"#), [""; 0]);
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    write("status", format!(r#"{{"pid":{},"process-start-time":{},"cgroup-path":"/x"}}"#, this.pid, this.start_time));
    assert_eq!(init_from_runtime(dir.path(), &mut processes).map(|found| found.pid), Some(this.pid), "crun");
    write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":{}}}"#, this.pid, this.start_time));
    assert_eq!(init_from_runtime(dir.path(), &mut processes).map(|found| found.pid), Some(this.pid), "runc");
    write("state.json", format!(r#"{{"id":"x","init_process_pid":{},"init_process_start":1}}"#, this.pid));
    assert_eq!(init_from_runtime(dir.path(), &mut processes), None, "the PID was reused");
}
