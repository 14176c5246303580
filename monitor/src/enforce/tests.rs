use super::*;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
const GRACE: Duration = Duration::from_secs(2);

fn member(pid: u32, charged: Option<u64>, held: u64) -> GpuProcess {
    let charged = charged.map(|mib| mib * MIB);
    GpuProcess { pid: Some(pid), inner: pid, started: 1, charged, held: Some(held * MIB), listed: true, ..GpuProcess::default() }
}

fn share(limit: u64, processes: Vec<GpuProcess>) -> Share {
    let held = processes.iter().filter_map(|member| member.held).sum();
    Share { uuid: "GPU".to_owned(), memory_limit: Some(limit * MIB), held: Some(held), processes, ..Share::default() }
}

fn snapshot(share: Share) -> Snapshot {
    let container = ContainerState { id: "c".to_owned(), gpus: vec![share], ..ContainerState::default() };
    Snapshot { containers: vec![container], ..Snapshot::default() }
}

/// Looks every half second. Gives what is found at the last one.
fn judged(judge: &mut ViolationDetector, from: u32, looks: &[Snapshot]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, snapshot) in looks.iter().enumerate() {
        found = judge.judge(snapshot, Duration::from_millis(500) * (from + number as u32));
    }
    found
}

#[test]
fn whoever_is_over_is_found_at_the_third_look_and_due_after_the_grace_time() {
    let mut judge = ViolationDetector::new(GRACE);
    let over = snapshot(share(1024, vec![member(1, Some(600), 600), member(2, None, 2000)]));
    let kinds = |found: &[Violation]| found.iter().map(|one| (one.kind, one.new, one.due)).collect::<Vec<_>>();
    assert!(judged(&mut judge, 0, &[over.clone(), over.clone()]).is_empty());
    let found = judged(&mut judge, 2, std::slice::from_ref(&over));
    assert_eq!(kinds(&found), [(Kind::Over, true, false), (Kind::Bypass, true, false)]);
    let pids = |found: &Violation| found.offenders.iter().map(|offender| offender.pid).collect::<Vec<_>>();
    assert_eq!((pids(&found[0]), pids(&found[1])), (vec![2], vec![2]), "whoever has charged what it holds is left alone");
    assert_eq!(kinds(&judged(&mut judge, 3, std::slice::from_ref(&over))), [(Kind::Over, false, false), (Kind::Bypass, false, false)]);
    assert_eq!(kinds(&judged(&mut judge, 4, std::slice::from_ref(&over))), [(Kind::Over, false, true), (Kind::Bypass, false, true)]);
    assert_eq!(kinds(&judged(&mut judge, 5, std::slice::from_ref(&over))), [(Kind::Over, false, false), (Kind::Bypass, false, false)]);
    let good = snapshot(share(1024, vec![member(1, Some(600), 600)]));
    assert!(judged(&mut judge, 6, &[good, over]).is_empty(), "what has ended counts from the beginning");
}

#[test]
fn what_passes_is_nobodys_fault() {
    let over = || share(1024, vec![member(1, Some(600), 600), member(2, Some(100), 900)]);
    let good = || share(1024, vec![member(1, Some(600), 600)]);
    let unknown = |pid| share(1024, vec![member(pid, None, 500)]);
    let ending = share(1024, vec![GpuProcess { in_between: true, ..member(1, None, 500) }]);
    let making = share(1024, vec![member(1, Some(600), 600), GpuProcess { in_between: true, ..member(2, Some(0), 518) }]);
    let within_slack = share(1024, vec![member(1, Some(1024), 1024 + 30)]);
    let managed = Share { managed: 4000 * MIB, charged: 4600 * MIB, ..share(1024, vec![member(1, Some(4600), 600)]) };
    let cases: [(&str, Vec<Share>); 7] = [
        ("over at one look only", vec![over(), over(), good(), over(), over(), good()]),
        ("a new process at every look", (0..20).map(unknown).collect()),
        ("a zombie that NVML still lists", vec![ending; 20]),
        ("a context whose cost is not charged yet", vec![making; 9]),
        ("what the driver takes for itself", vec![within_slack; 20]),
        ("managed memory, which NVML does not list", vec![managed; 20]),
        ("no limit on anything", vec![Share { memory_limit: None, ..unknown(1) }; 20]),
    ];
    for (description, shares) in cases {
        let mut judge = ViolationDetector::new(GRACE);
        for (number, share) in shares.into_iter().enumerate() {
            let found = judge.judge(&snapshot(share), Duration::from_millis(500) * number as u32);
            assert!(found.is_empty(), "{description}: {found:?}");
        }
    }
}

#[test]
fn nobody_hides_behind_a_context_that_is_never_finished() {
    let mut judge = ViolationDetector::new(GRACE);
    let making = snapshot(share(1024, vec![GpuProcess { in_between: true, ..member(1, Some(3000), 3000) }]));
    assert!(!judged(&mut judge, 0, &vec![making; 16]).is_empty());
}

#[test]
fn forged_charges_do_not_help() {
    let mut judge = ViolationDetector::new(GRACE);
    let forged = snapshot(share(1024, vec![member(1, Some(500), 500), member(2, Some(3000), 3000)]));
    let found = judged(&mut judge, 0, &[forged.clone(), forged.clone(), forged]);
    assert_eq!(found[0].offenders.iter().map(|offender| offender.pid).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_lowered_limit_leaves_what_is_held() {
    let mut judge = ViolationDetector::new(GRACE);
    let holding = |limit, held| snapshot(share(limit, vec![member(1, Some(held), held)]));
    assert!(judged(&mut judge, 0, &vec![holding(4096, 3000); 3]).is_empty());
    assert!(judged(&mut judge, 3, &vec![holding(1024, 3000); 20]).is_empty(), "it was there before");
    assert!(judged(&mut judge, 23, &vec![holding(1024, 2000); 20]).is_empty(), "and becomes less");
    let found = judged(&mut judge, 43, &vec![holding(1024, 3000); 3]);
    assert_eq!(found[0].allowed, Some(2000 * MIB), "but what was given back is gone");

    // A judge that comes later: what is charged may be from before the change, what nobody charged is not.
    let mut later = ViolationDetector::new(GRACE);
    let changed = |share: Share| {
        let mut snapshot = snapshot(share);
        snapshot.containers[0].changes = 1;
        snapshot
    };
    assert!(judged(&mut later, 0, &vec![changed(share(1024, vec![member(1, Some(3000), 3000)])); 20]).is_empty());
    let mut later = ViolationDetector::new(GRACE);
    let found = judged(&mut later, 0, &vec![changed(share(1024, vec![member(1, None, 3000)])); 3]);
    assert_eq!(found[0].kind, Kind::Over);
}

#[test]
fn where_nvml_does_not_tell_nothing_is_concluded() {
    let mut judge = ViolationDetector::new(GRACE);
    let over = || snapshot(share(1024, vec![member(1, None, 3000)]));
    let silent = || snapshot(Share { held: None, ..share(1024, Vec::new()) });
    assert!(judged(&mut judge, 0, &[over(), silent(), silent(), silent(), over()]).is_empty());
    assert_eq!(judged(&mut judge, 5, &[silent(), over()]).len(), 2, "three looks that could tell");
}

#[test]
fn only_the_process_that_was_meant_is_ended() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let started = Process::read(child.id()).unwrap().started;
    let meant = Offender { pid: child.id(), started, name: "sleep".to_owned(), held: None };
    let this = |process: &Process| process.pid == meant.pid && process.cgroups == Process::read(std::process::id()).unwrap().cgroups;
    assert!(!kill(&Offender { started: started + 1, ..meant.clone() }, this).unwrap(), "another process by now");
    assert!(!kill(&meant, |_| false).unwrap(), "it is elsewhere by now");
    assert_eq!(child.try_wait().unwrap(), None);
    assert!(kill(&meant, this).unwrap());
    assert!(!child.wait().unwrap().success());
    assert!(!kill(&meant, this).unwrap(), "it has ended");
}
