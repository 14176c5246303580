//! Every way to use GPU time is charged, under a limit of GPU time and without a container.

use vgpu_e2e::{Kit, Machine};

#[test]
fn every_way_to_use_gpu_time_is_charged() {
    let kit = Kit::find();
    let machine = Machine::simulated(&kit, &[]);
    let output = machine.program("charged").arg("--library").arg(kit.library()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let charged = stdout.lines().filter(|line| line.ends_with("| ok |")).count();
    assert!(charged >= 15, "{charged} methods");
}
