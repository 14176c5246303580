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
    let ending = share(1024, vec![GpuProcess { is_transient: true, has_exited: true, ..process(1, None, 500) }]);
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
}

#[test]
fn samples_without_process_lists_are_neutral() {
    let mut detector = ViolationDetector::new(GRACE);
    let over = || snapshot(share(1024, vec![process(1, None, 3000)]));
    let silent = || snapshot(Share { held: None, ..share(1024, Vec::new()) });
    assert!(detected(&mut detector, 0, &[over(), silent(), silent(), silent(), over()]).is_empty());
    assert_eq!(detected(&mut detector, 5, &[silent(), over()]).len(), 2, "three samples with process lists");
}

/// Processes that say all the time that they are making a context.
#[test]
fn a_claim_to_make_a_context_excuses_for_a_bounded_time() {
    let making = |pid, is_transient| GpuProcess { is_transient, ..process(pid, Some(0), 3000) };
    let pids = |found: &[Violation]| found.iter().flat_map(|one| one.offenders.iter().map(|offender| offender.pid)).collect::<Vec<_>>();
    let mut detector = ViolationDetector::new(GRACE);
    let always = snapshot(share(1024, vec![process(1, Some(600), 600), making(2, true)]));
    let found = detected(&mut detector, 0, &vec![always; 16]);
    assert!(found.iter().any(|one| one.kind == Kind::Over) && pids(&found).iter().all(|pid| *pid == 2), "{found:?}");

    // Two processes take turns with the claim.
    let mut detector = ViolationDetector::new(GRACE);
    let turns = |number: u32| snapshot(share(1024, vec![making(2, number.is_multiple_of(2)), making(3, !number.is_multiple_of(2))]));
    let mut due = Vec::new();
    for number in 0..40 {
        let found = detected(&mut detector, number, &[turns(number)]);
        due.extend(found.into_iter().filter(|one| one.is_due).flat_map(|one| one.offenders).map(|offender| offender.pid));
    }
    assert!(due.contains(&2) && due.contains(&3), "{due:?}");

    // A claim without end is no excuse for more than a zombie's is: that of a process that has exited holds as long as NVML lists it.
    let mut detector = ViolationDetector::new(GRACE);
    let ending = snapshot(share(1024, vec![GpuProcess { has_exited: true, ..making(2, true) }]));
    assert!(pids(&detected(&mut detector, 0, &vec![ending; 40])).is_empty());
}

#[test]
fn what_a_container_keeps_by_right_is_the_hosts_to_say() {
    let changed = |by_right: Option<u64>| {
        let forged = Share { by_right: by_right.map(|mib| mib * MIB), ..share(1024, vec![process(1, Some(3000), 3000)]) };
        let mut snapshot = snapshot(forged);
        snapshot.containers[0].changes = 1;
        snapshot
    };
    let found = |by_right| detected(&mut ViolationDetector::new(GRACE), 0, &vec![changed(by_right); 3]);
    assert!(!found(None).is_empty(), "the charges of the account prove nothing");
    assert!(!found(Some(2000)).is_empty());
    assert!(found(Some(3000)).is_empty());
}

#[test]
fn a_process_that_holds_far_more_than_it_charged_bypasses() {
    let kinds = |share: Share| {
        let found = detected(&mut ViolationDetector::new(GRACE), 0, &vec![snapshot(share); 3]);
        found.iter().map(|one| (one.kind, one.offenders.iter().map(|offender| offender.pid).collect())).collect::<Vec<(Kind, Vec<u32>)>>()
    };
    let with = |booked: u64, processes| Share { booked: booked * MIB, ..share(4096, processes) };
    let honest = || process(1, Some(1000), 1002);
    assert_eq!(kinds(with(1000, vec![honest(), process(2, Some(0), 518)])), [(Kind::Bypass, vec![2])], "a slot is no account");
    assert_eq!(kinds(with(2518, vec![honest(), process(2, Some(0), 518)])), [], "imported memory is charged to its maker");
    assert_eq!(kinds(with(1000, vec![honest(), process(2, Some(0), 100)])), [], "what the library does not measure");
    assert_eq!(kinds(with(0, vec![process(1, Some(3000), 3300)])), [], "an eighth of much memory");
}

#[test]
fn a_damaged_account_hides_no_process() {
    let damaged = |is_tampered| {
        let mut snapshot = snapshot(share(1024, vec![process(1, None, 518)]));
        (snapshot.containers[0].damaged, snapshot.containers[0].is_tampered) = (Some("x".to_owned()), is_tampered);
        detected(&mut ViolationDetector::new(GRACE), 0, &vec![snapshot; 3])
    };
    assert_eq!(damaged(true).iter().map(|one| one.kind).collect::<Vec<_>>(), [Kind::Bypass]);
    assert!(damaged(false).is_empty(), "the host could not read it");
}

/// Samples every half second of a container with a limit of 20%, whose processes use `used` percent according to NVML.
fn over_time(detector: &mut ViolationDetector, samples: std::ops::Range<u32>, observed_ns: &mut u64, used: [u32; 2]) -> Vec<Violation> {
    let mut found = Vec::new();
    for number in samples {
        *observed_ns += u64::from(used[0] + used[1]) * 5_000_000;
        let processes = [(1, used[0]), (2, used[1])].map(|(pid, used)| GpuProcess { observed: Some(used), ..process(pid, Some(9), 9) });
        let share = Share {
            cores: Some(20),
            observed: Some(f64::from(used[0] + used[1])),
            observed_ns: Some(*observed_ns),
            observed_over_ns: u64::from(number) * 500_000_000,
            ..share(1024, processes.to_vec())
        };
        found = detector.detect(&snapshot(share), Duration::from_millis(500) * number);
    }
    found
}

#[test]
fn gpu_time_beyond_the_limit_is_a_violation() {
    let (mut detector, mut used) = (ViolationDetector::new(GRACE), 0);
    assert!(over_time(&mut detector, 0..600, &mut used, [20, 5]).is_empty(), "a little more than the limit");
    assert!(over_time(&mut detector, 600..616, &mut used, [100, 0]).is_empty(), "a kernel of eight seconds");
    assert!(over_time(&mut detector, 616..680, &mut used, [0, 0]).is_empty(), "which is paid for");
    let found = over_time(&mut detector, 680..740, &mut used, [86, 5]);
    assert_eq!(found.iter().map(|one| (one.kind, one.time)).collect::<Vec<_>>(), [(Kind::OverTime, Some((91.0, 20)))]);
    assert_eq!(found[0].offenders.iter().map(|offender| offender.pid).collect::<Vec<_>>(), [1], "without it the container keeps its limit");
}

#[test]
fn the_end_of_a_process_pays_for_no_gpu_time() {
    let is_due = |found: &[Violation]| found.iter().any(|one| one.is_due);
    let due = |detector: &mut ViolationDetector, used: &mut u64, from: u32| {
        let due = (from..from + 100).find(|&number| is_due(&over_time(detector, number..number + 1, used, [91, 0])));
        due.expect("processes are due to be ended")
    };
    let (mut detector, mut used) = (ViolationDetector::new(GRACE), 0);
    let first = due(&mut detector, &mut used, 0);
    // The offender has been ended, and nobody uses the GPU until another one takes its place: that one has no grace.
    over_time(&mut detector, first + 1..first + 3, &mut used, [0, 0]);
    let second = due(&mut detector, &mut used, first + 3);
    assert!(second <= first + 3 + 2 * MIN_SAMPLES, "{first}, {second}");
    // A process that keeps to the limit is not ended for what others used, and in the end it is paid for.
    let found: Vec<Violation> =
        (second + 1..second + 60).flat_map(|number| over_time(&mut detector, number..number + 1, &mut used, [0, 20])).collect();
    assert!(found.len() < 50 && found.iter().all(|one| one.offenders.is_empty()), "{found:?}");
}

#[test]
fn a_repeated_violation_has_no_grace() {
    let mut detector = ViolationDetector::new(GRACE);
    let over = |pid| snapshot(share(1024, vec![process(pid, None, 2000)]));
    let none = snapshot(share(1024, Vec::new()));
    let due = |detector: &mut ViolationDetector, from: u32, pid| {
        (from..from + 20).find(|&number| detected(detector, number, &[over(pid)]).iter().any(|one| one.is_due)).map(|number| number - from)
    };
    assert_eq!(due(&mut detector, 0, 1), Some(4), "the grace");
    detected(&mut detector, 5, &[none.clone(), none.clone()]);
    assert_eq!(due(&mut detector, 7, 2), Some(MIN_SAMPLES - 1), "a program that was started anew");
    detected(&mut detector, 20, std::slice::from_ref(&none));
    detected(&mut detector, 20 + 2 * REPEAT.as_secs() as u32, &[none]);
    assert_eq!(due(&mut detector, 1000, 3), Some(4), "much later");
}

#[test]
fn lent_time_is_no_violation() {
    let mut detector = ViolationDetector::new(GRACE);
    for number in 0..400_u32 {
        // The arbiter lends all of the GPU, with pauses.
        let lent = if number % 40 < 5 { 90 } else { 0 };
        let observed_ns = Some(u64::from(number) * 450_000_000);
        let observed_over_ns = u64::from(number) * 500_000_000;
        let share = Share { cores: Some(20), lent, observed_ns, observed_over_ns, ..share(1024, vec![process(1, Some(9), 9)]) };
        let found = detector.detect(&snapshot(share), Duration::from_millis(500) * number);
        assert!(found.is_empty(), "{number}: {found:?}");
    }
}
