use std::os::fd::AsRawFd;

use vgpu_region::limits::{GpuLimit, Selector};

use super::*;

const OWN: Uuid = Uuid([1; 16]);
const FOREIGN: Uuid = Uuid([2; 16]);

/// Creates a container whose limits are entries for these GPUs, and returns its mapped region.
fn container(dir: &Path, selectors: [Selector; 2]) -> &'static Region {
    std::fs::create_dir_all(dir).unwrap();
    let page = LimitsPage::new(selectors.map(|selector| {
        let limit = GpuLimit::new(selector);
        limit.cores.store(if selector == selectors[0] { 30 } else { 60 }, Relaxed);
        limit
    }));
    std::fs::write(dir.join("limits"), page.as_bytes()).unwrap();
    let region = dir.join("region");
    map::format(File::create(&region).unwrap().as_raw_fd()).unwrap();
    map::region(&CString::new(region.as_os_str().as_bytes()).unwrap()).unwrap()
}

/// Returns the limit of each tenant in percent, by GPU.
fn seats(arbiter: &Arbiter<'_>) -> Vec<(Uuid, u32)> {
    let seats = |(uuid, scheduler): (&[u8; 16], &Scheduler)| {
        scheduler.tenants.iter().map(|tenant| (Uuid(*uuid), tenant.weight().unwrap())).collect()
    };
    arbiter.gpus.iter().map(seats).collect::<Vec<Vec<_>>>().concat()
}

#[test]
fn a_container_has_seats_on_its_own_gpus_alone() {
    let dir = tempfile::tempdir().unwrap();
    let region = container(&dir.path().join("c"), [Selector::All, Selector::Index(7)]);
    let gpus_of = |_: &Path| vec![OWN];
    let mut arbiter = Arbiter::new(dir.path(), &gpus_of);
    region.gpu(FOREIGN).unwrap();
    arbiter.scan();
    assert_eq!(seats(&arbiter), [], "a forged GPU");
    region.gpu(OWN).unwrap();
    arbiter.scan();
    assert_eq!(seats(&arbiter), [(OWN, 30)]);
}

#[test]
fn limits_by_index_follow_the_containers_order() {
    let dir = tempfile::tempdir().unwrap();
    let region = container(&dir.path().join("c"), [Selector::Index(0), Selector::Index(1)]);
    let gpus_of = |_: &Path| vec![FOREIGN, OWN];
    let mut arbiter = Arbiter::new(dir.path(), &gpus_of);
    // The second GPU is used first.
    region.gpu(OWN).unwrap();
    arbiter.scan();
    assert_eq!(seats(&arbiter), [(OWN, 60)]);
}

#[test]
fn gpus_that_are_not_known_yet_are_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let region = container(&dir.path().join("c"), [Selector::All, Selector::Index(7)]);
    region.gpu(OWN).unwrap();
    let questions = std::cell::Cell::new(0);
    let gpus_of = |_: &Path| {
        questions.set(questions.get() + 1);
        if questions.get() < 3 { Vec::new() } else { vec![OWN] }
    };
    let mut arbiter = Arbiter::new(dir.path(), &gpus_of);
    (0..3 * SCANS_BETWEEN_QUESTIONS).for_each(|_| arbiter.scan());
    assert_eq!((questions.get(), seats(&arbiter)), (3, vec![(OWN, 30)]));
}
