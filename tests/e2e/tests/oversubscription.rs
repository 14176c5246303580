//! Oversubscription: what does not fit into a container's share is spilled to the host, as far as its request and the operator allow.

use vgpu_e2e::{Kit, MIB, Machine, Oversub, Way, host, hosts};
use vgpu_test_harness::{Runtime, can_run};

/// A GPU with small contexts, which NVML lists in full.
const PROPERTIES: [&str; 2] = ["context=8M", "context_hidden=0"];
const LIMIT: u64 = 96 * MIB;
const NEED: [&str; 5] = ["/programs/oversub", "--need", "144M", "--chunk", "4M"];

#[test]
fn program_that_needs_more_than_its_share_finishes() {
    let kit = Kit::find();
    for (runtime, way, host) in hosts(&kit) {
        let machine = Machine::simulated(&kit, &PROPERTIES);
        let _watch = machine.watch();
        let bundle = machine.bundle().annotation("nvidia.com/gpumem", "96").annotation("nvidia.com/gpumem-oversubscribe", "true");
        let outcome = way.run(&host, bundle.args(&NEED));
        let case = format!("{runtime:?}, {way:?}: {outcome:#?}");
        let answer = Oversub::of(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:#?}"));
        assert_eq!((answer.obtained, answer.wrong, answer.total), (144 * MIB, 0, 2 * LIMIT), "{case}");
        assert_eq!(answer.refused, "CUDA_ERROR_OUT_OF_MEMORY", "{case}");
        assert!(answer.elsewhere > 0 && answer.most <= 2 * LIMIT, "{case}");
        assert!(outcome.stderr.contains("on the host it holds 96 of 96 MiB"), "{case}");
        let peak = machine.peak_in_use(0);
        assert!(peak <= LIMIT, "{peak} bytes were in use on the GPU: {case}");
    }
}

/// Environment variables, and the resulting share and total that the program sees, in MiB.
type Case<'a> = (&'a [(&'a str, &'a str)], u64, u64);

#[test]
fn every_dialect_can_request_it() {
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
        let answer = Oversub::of(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {outcome:#?}"));
        assert_eq!((answer.total, answer.wrong), (total * MIB, 0), "{environment:?}: {outcome:#?}");
        assert!(machine.peak_in_use(0) <= device * MIB, "{environment:?}: {outcome:#?}");
        assert_eq!(answer.elsewhere > 0, total > device, "{environment:?}: {outcome:#?}");
    }
}

#[test]
fn operator_limits_it() {
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
    let lines: Vec<&str> = refused.stderr.lines().filter(|line| line.contains("nvidia.com/gpumem-oversubscribe: \"true\"")).collect();
    assert!(lines.len() == 1 && lines[0].contains("at most 0 percent"), "{refused:#?}");
    let without = Oversub::of(&run("over_ceiling = \"clamp\"\n[ceilings]\noversubscribe_percent = 0").stdout).unwrap();
    assert_eq!((without.total, without.elsewhere), (LIMIT, 0));
    let quarter = Oversub::of(&run("[ceilings]\noversubscribe_percent = 25").stdout).unwrap();
    assert_eq!(quarter.total, LIMIT + LIMIT / 4);
    assert!(quarter.most <= quarter.total, "{quarter:?}");
}

/// Memory that cannot be spilled is refused once the share is full, with a message that says so.
#[test]
fn memory_that_cannot_be_spilled_is_refused() {
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
        assert!(machine.peak_in_use(0) <= LIMIT, "{api}: {outcome:#?}");
    }
}

/// The program's own trials, without a container: two processes at a time, and a process after a killed one.
#[test]
fn processes_share_the_spill_ceiling() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &PROPERTIES);
    let library = kit.library();
    let sizes = ["--limit", "96M", "--ceiling", "96M", "--need", "144M", "--chunk", "4M"];
    let output = machine.program("oversub").arg("--library").arg(&library).args(sizes).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
