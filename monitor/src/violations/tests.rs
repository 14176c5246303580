use super::*;

const MIB: u64 = 1 << 20;
const GRACE: Duration = Duration::from_secs(2);

fn process(pid: u32, charged: Option<u64>, held: u64) -> GpuProcess {
    let charged = charged.map(|mib| mib * MIB);
    GpuProcess { pid: Some(pid), inner_pid: pid, start_time: 1, charged, held: Some(held * MIB), is_listed: true, ..GpuProcess::default() }
}

fn share(limit: u64, processes: Vec<GpuProcess>) -> Share {
    let held = processes.iter().filter_map(|process| process.held).sum();
    Share { uuid: "GPU".to_owned(), memory_limit: Some(limit * MIB), held: Some(held), processes, ..Share::default() }
}

fn snapshot(share: Share) -> Snapshot {
    let container = ContainerState { id: "c".to_owned(), gpus: vec![share], ..ContainerState::default() };
    Snapshot { containers: vec![container], ..Snapshot::default() }
}

/// Samples every half second. Returns the violations at the last sample.
fn detected(detector: &mut ViolationDetector, from: u32, samples: &[Snapshot]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, snapshot) in samples.iter().enumerate() {
        found = detector.detect(snapshot, Duration::from_millis(500) * (from + number as u32));
    }
    found
}

#[test]
fn violations_count_from_the_third_sample_and_are_due_after_the_grace_time() {
    let mut detector = ViolationDetector::new(GRACE);
    let over = snapshot(share(1024, vec![process(1, Some(600), 600), process(2, None, 2000)]));
    let kinds = |found: &[Violation]| found.iter().map(|one| (one.kind, one.is_new, one.is_due)).collect::<Vec<_>>();
    assert!(detected(&mut detector, 0, &[over.clone(), over.clone()]).is_empty());
    let found = detected(&mut detector, 2, std::slice::from_ref(&over));
    assert_eq!(kinds(&found), [(Kind::Over, true, false), (Kind::Bypass, true, false)]);
    let pids = |found: &Violation| found.offenders.iter().map(|offender| offender.pid).collect::<Vec<_>>();
    assert_eq!((pids(&found[0]), pids(&found[1])), (vec![2], vec![2]), "a process that has charged what it holds is left alone");
    assert_eq!(kinds(&detected(&mut detector, 3, std::slice::from_ref(&over))), [(Kind::Over, false, false), (Kind::Bypass, false, false)]);
    assert_eq!(kinds(&detected(&mut detector, 4, std::slice::from_ref(&over))), [(Kind::Over, false, true), (Kind::Bypass, false, true)]);
    assert_eq!(kinds(&detected(&mut detector, 5, std::slice::from_ref(&over))), [(Kind::Over, false, false), (Kind::Bypass, false, false)]);
    let good = snapshot(share(1024, vec![process(1, Some(600), 600)]));
    assert!(detected(&mut detector, 6, &[good, over]).is_empty(), "a violation that ended starts over");
}

#[test]
fn transient_and_permitted_usage_is_no_violation() {
    let over = || share(1024, vec![process(1, Some(600), 600), process(2, Some(100), 900)]);
    let good = || share(1024, vec![process(1, Some(600), 600)]);
    let unknown = |pid| share(1024, vec![process(pid, None, 500)]);
    let ending = share(1024, vec![GpuProcess { is_transient: true, ..process(1, None, 500) }]);
    let making = share(1024, vec![process(1, Some(600), 600), GpuProcess { is_transient: true, ..process(2, Some(0), 518) }]);
    let within_slack = share(1024, vec![process(1, Some(1024), 1024 + 30)]);
    let managed = Share { managed: 4000 * MIB, charged: 4600 * MIB, ..share(1024, vec![process(1, Some(4600), 600)]) };
    let cases: [(&str, Vec<Share>); 7] = [
        ("over the limit in two samples only", vec![over(), over(), good(), over(), over(), good()]),
        ("a new process in each sample", (0..20).map(unknown).collect()),
        ("a zombie that NVML still lists", vec![ending; 20]),
        ("a context that is not charged yet", vec![making; 9]),
        ("the driver's own memory", vec![within_slack; 20]),
        ("managed memory, which NVML does not list", vec![managed; 20]),
        ("no limits", vec![Share { memory_limit: None, ..unknown(1) }; 20]),
    ];
    for (description, shares) in cases {
        let mut detector = ViolationDetector::new(GRACE);
        for (number, share) in shares.into_iter().enumerate() {
            let found = detector.detect(&snapshot(share), Duration::from_millis(500) * number as u32);
            assert!(found.is_empty(), "{description}: {found:?}");
        }
    }
}

#[test]
fn unfinished_contexts_excuse_for_a_limited_time() {
    let mut detector = ViolationDetector::new(GRACE);
    let making = snapshot(share(1024, vec![GpuProcess { is_transient: true, ..process(1, Some(3000), 3000) }]));
    assert!(!detected(&mut detector, 0, &vec![making; 16]).is_empty());
}

#[test]
fn forged_charges_do_not_hide_offenders() {
    let mut detector = ViolationDetector::new(GRACE);
    let forged = snapshot(share(1024, vec![process(1, Some(500), 500), process(2, Some(3000), 3000)]));
    let found = detected(&mut detector, 0, &[forged.clone(), forged.clone(), forged]);
    assert_eq!(found[0].offenders.iter().map(|offender| offender.pid).collect::<Vec<_>>(), [2]);
}

#[test]
fn lowered_limits_allow_what_is_held() {
    let mut detector = ViolationDetector::new(GRACE);
    let holding = |limit, held| snapshot(share(limit, vec![process(1, Some(held), held)]));
    assert!(detected(&mut detector, 0, &vec![holding(4096, 3000); 3]).is_empty());
    assert!(detected(&mut detector, 3, &vec![holding(1024, 3000); 20]).is_empty(), "held before the change");
    assert!(detected(&mut detector, 23, &vec![holding(1024, 2000); 20]).is_empty(), "freeing is allowed");
    let found = detected(&mut detector, 43, &vec![holding(1024, 3000); 3]);
    assert_eq!(found[0].allowed, Some(2000 * MIB), "freed memory may not be taken again");

    // A detector started after the change: charged memory may be older than the change, uncharged memory is not.
    let mut later = ViolationDetector::new(GRACE);
    let changed = |share: Share| {
        let mut snapshot = snapshot(share);
        snapshot.containers[0].changes = 1;
        snapshot
    };
    assert!(detected(&mut later, 0, &vec![changed(share(1024, vec![process(1, Some(3000), 3000)])); 20]).is_empty());
    let mut later = ViolationDetector::new(GRACE);
    let found = detected(&mut later, 0, &vec![changed(share(1024, vec![process(1, None, 3000)])); 3]);
    assert_eq!(found[0].kind, Kind::Over);
}

#[test]
fn samples_without_process_lists_are_neutral() {
    let mut detector = ViolationDetector::new(GRACE);
    let over = || snapshot(share(1024, vec![process(1, None, 3000)]));
    let silent = || snapshot(Share { held: None, ..share(1024, Vec::new()) });
    assert!(detected(&mut detector, 0, &[over(), silent(), silent(), silent(), over()]).is_empty());
    assert_eq!(detected(&mut detector, 5, &[silent(), over()]).len(), 2, "three samples with process lists");
}
