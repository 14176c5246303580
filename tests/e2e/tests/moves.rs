//! Memory that moves to the host and back under a program that uses it, without a container. The programs check each word and their
//! accounts. `make moves` makes many more moves.

use vgpu_e2e::{Kit, Machine};

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

#[test]
fn accounts_equal_nvml_after_moves() {
    run("churn", &["--moves", "--limit", "4G", "--processes", "2", "--threads", "2", "--steps", "300", "--rounds", "2"]);
}
