//! Every way of having GPU time, under a limit of it, without a container. The program says what was had for nothing.

use vgpu_e2e::{Kit, Machine};

#[test]
fn every_way_of_having_gpu_time_is_charged_for() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &[]);
    let output = machine.program("charged").arg("--library").arg(kit.library()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tried = said.lines().filter(|line| line.ends_with("| ok |")).count();
    assert!(tried >= 15, "{tried} ways");
}
