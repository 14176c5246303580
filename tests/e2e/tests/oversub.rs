//! Oversubscription: what a container's share has no room for lies on the host, as far as its request and the operator let it.

use vgpu_e2e::{Kit, MIB, Machine, Oversub, Way, host, hosts};
use vgpu_test_harness::{Runtime, can_run};

/// A context costs little on this GPU, and nothing that NVML does not show.
const PROPERTIES: [&str; 2] = ["context=8M", "context_hidden=0"];
const LIMIT: u64 = 96 * MIB;
const NEED: [&str; 5] = ["/programs/oversub", "--need", "144M", "--chunk", "4M"];

#[test]
fn a_program_that_needs_more_than_its_share_finishes() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let machine = Machine::simulated(&kit, &PROPERTIES);
        let _watch = machine.watch();
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "96").annotation("nvidia.com/gpumem-oversubscribe", "true");
        let outcome = way.run(&host, bundle.args(&NEED));
        let case = format!("{runtime:?}, {way:?}: {outcome:#?}");
        let answer = Oversub::of(&outcome.stdout).unwrap_or_else(|why| panic!("{why}: {outcome:#?}"));
        assert_eq!((answer.obtained, answer.wrong, answer.total), (144 * MIB, 0, 2 * LIMIT), "{case}");
        assert_eq!(answer.refused, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
        assert!(answer.elsewhere > 0 && answer.most <= 2 * LIMIT, "{case}");
        assert!(outcome.stderr.contains("on the host it holds 96 of 96 MiB"), "{case}");
        let most = machine.most(0);
        assert!(most <= LIMIT, "{most} bytes were in use on the GPU: {case}");
    }
}

/// What the environment says, and what that gives: the share, and what the program sees, in MiB.
type Case<'a> = (&'a [(&'a str, &'a str)], u64, u64);

/// Each dialect has its own way to ask.
#[test]
fn however_it_is_asked_for() {
    let kit = Kit::find();
    if !can_run(Runtime::Runc) {
        return;
    }
    let host = host(&kit, Runtime::Runc);
    let cases: [Case; 5] = [
        (&[("CUDA_DEVICE_MEMORY_LIMIT", "96m"), ("CUDA_OVERSUBSCRIBE", "true")], 96, 192),
        (&[("CUDA_MEM_LIMIT_0", "96m"), ("CUDA_MEMORY_OVERSUBSCRIBE", "true")], 96, 192),
        (&[("CUDA_MEM_LIMIT_0", "96m"), ("CUDA_MEM_OVERSOLD_0", "true")], 96, 192),
        // The limit is the sum of both.
        (&[("CUDA_MEM_LIMIT_0", "160m"), ("CUDA_MEM_RATIO_0", "2")], 80, 160),
        (&[("CUDA_MEM_LIMIT_0", "96m"), ("CUDA_OVERSUBSCRIBE", "false")], 96, 96),
    ];
    for (environment, device, total) in cases {
        let machine = Machine::simulated(&kit, &PROPERTIES);
        let _watch = machine.watch();
        let bundle = environment.iter().fold(machine.bundle(), |bundle, (name, value)| bundle.env(name, value));
        let outcome = Way::Wrapper.run(&host, bundle.args(&NEED));
        let answer = Oversub::of(&outcome.stdout).unwrap_or_else(|why| panic!("{why}: {outcome:#?}"));
        assert_eq!((answer.total, answer.wrong), (total * MIB, 0), "{environment:?}: {outcome:#?}");
        assert!(machine.most(0) <= device * MIB, "{environment:?}: {outcome:#?}");
        assert_eq!(answer.elsewhere > 0, total > device, "{environment:?}: {outcome:#?}");
    }
}

#[test]
fn the_operator_has_the_last_word() {
    let kit = Kit::find();
    if !can_run(Runtime::Runc) {
        return;
    }
    let host = host(&kit, Runtime::Runc);
    let machine = Machine::simulated(&kit, &PROPERTIES);
    let run = |policy: &str| {
        host.policy(policy);
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "96").annotation("nvidia.com/gpumem-oversubscribe", "true");
        Way::Wrapper.run(&host, bundle.args(&NEED))
    };
    let refused = run("[ceilings]\noversubscribe_percent = 0");
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:#?}");
    let lines: Vec<&str> = refused.stderr.lines().filter(|line| line.contains("nvidia.com/gpumem-oversubscribe=\"true\"")).collect();
    assert!(lines.len() == 1 && lines[0].contains("at most 0 percent"), "{refused:#?}");
    let without = Oversub::of(&run("over_ceiling = \"clamp\"\n[ceilings]\noversubscribe_percent = 0").stdout).unwrap();
    assert_eq!((without.total, without.elsewhere), (LIMIT, 0));
    let quarter = Oversub::of(&run("[ceilings]\noversubscribe_percent = 25").stdout).unwrap();
    assert_eq!(quarter.total, LIMIT + LIMIT / 4);
    assert!(quarter.most <= quarter.total, "{quarter:?}");
}

/// What cannot lie on the host is refused once the share is full, and the program is told why.
#[test]
fn what_cannot_be_spilled_is_refused() {
    let kit = Kit::find();
    if !can_run(Runtime::Runc) {
        return;
    }
    let host = host(&kit, Runtime::Runc);
    for api in ["vmm", "array", "graph"] {
        let machine = Machine::simulated(&kit, &PROPERTIES);
        let _watch = machine.watch();
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "96").annotation("nvidia.com/gpumem-oversubscribe", "true");
        let outcome = Way::Wrapper.run(&host, bundle.args(&["/programs/fill", "--api", api, "--chunk", "4M", "--max", "1G"]));
        let fill = vgpu_e2e::Fill::of(&outcome.stdout);
        assert!(fill.error == "CUDA_ERROR_OUT_OF_MEMORY" && fill.obtained < LIMIT, "{api}: {outcome:#?}");
        assert!(outcome.stderr.contains("this kind of memory cannot lie on the host"), "{api}: {outcome:#?}");
        assert!(machine.most(0) <= LIMIT, "{api}: {outcome:#?}");
    }
}

/// The program's own trials, without a container: two processes at a time, and after one that was killed.
#[test]
fn processes_share_what_may_lie_on_the_host() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &PROPERTIES);
    let library = kit.library();
    let sizes = ["--limit", "96M", "--ceiling", "96M", "--need", "144M", "--chunk", "4M"];
    let output = machine.program("oversub").arg("--library").arg(&library).args(sizes).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
