//! Memory that moves to the host and back under a program that uses it, without a container. The programs check each word and their
//! accounts. `make moves` makes many more moves.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use vgpu_e2e::{Kit, Machine};
use vgpu_test_programs::share::Share;

/// Runs a program under the library on a simulated GPU.
fn run(program: &str, arguments: &[&str]) {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=16G"]);
    let seed = vgpu_e2e::seed();
    let output = machine.program(program).arg("--library").arg(kit.library()).args(arguments).args(["--seed", &seed]).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_word_is_right_after_moves() {
    let moves = std::env::var("VGPU_TEST_MOVES").unwrap_or_else(|_| "200".to_owned());
    run("moves", &["--moves", &moves, "--threads", "3", "--blocks", "2", "--largest", "4M", "--pause", "500"]);
}

#[test]
fn every_word_is_right_after_moves_under_several_contexts() {
    run(
        "moves",
        &["--moves", "100", "--threads", "3", "--blocks", "3", "--largest", "6M", "--pause", "500", "--limit", "4G", "--contexts"],
    );
}

/// An allocation of more than 1 GiB consists of several blocks.
#[test]
fn every_word_of_a_large_allocation_is_right() {
    let large = ["--smallest", "1030M", "--largest", "1040M", "--limit", "4G"];
    run("moves", &[&["--moves", "2", "--threads", "1", "--blocks", "2", "--pause", "200000"], &large[..]].concat());
}

#[test]
fn accounts_equal_nvml_after_moves() {
    run("churn", &["--moves", "--limit", "4G", "--processes", "2", "--threads", "2", "--steps", "300", "--rounds", "2"]);
}

/// The driver's answers to a program that manages memory itself are the same where that memory can move: the program has the library's
/// handles then.
#[test]
fn handles_that_can_move_behave_as_the_drivers() {
    let kit = Kit::find();
    let answers = |share: Option<&Share>| {
        let machine = Machine::simulated(&kit, &["total=16G"]);
        let mut program = machine.program("../simgpu/conformance");
        program.arg("vmm");
        let program = match share {
            Some(share) => share.limits(kit.library().to_str().unwrap(), &mut program),
            None => &mut program,
        };
        let output = program.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let native = answers(None);
    assert!(native.contains("retain: CUDA_SUCCESS"), "{native}");
    assert_eq!(answers(Some(&Share::evictable(16 << 30).unwrap())), native);
}

/// A process that does nothing makes the host memory for its first move before somebody asks for room: mappings that are not copied to children
/// (`dc`) are the library's.
#[test]
fn an_idle_process_has_host_memory_before_its_first_move() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &["total=16G"]);
    let share = Share::evictable(4 << 30).unwrap();
    let mut program = machine.program("fill");
    program.args(["--chunk", "64M", "--max", "256M", "--hold", "600"]).stdout(Stdio::piped());
    let mut child = share.limits(kit.library().to_str().unwrap(), &mut program).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let maps = format!("/proc/{}/smaps", child.id());
    let is_made = || std::fs::read_to_string(&maps).unwrap().lines().any(|line| line.starts_with("VmFlags") && line.contains(" dc"));
    let begun = Instant::now();
    while !is_made() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let has_made = is_made();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_made, "no host memory: {line}");
}
