use std::os::unix::ffi::OsStrExt;

use vgpu_config::limits::{GpuLimits, Which};
use vgpu_oci_hook::state::REGION;
use vgpu_region::map;

use super::share::MIN_RATE_INTERVAL;
use super::*;
use crate::gpus::Holder;
use crate::test_host::Host;

#[test]
fn processes_of_another_pid_namespace_are_unknown_not_absent() {
    let holder = |pid| Holder { pid, memory: Some(1) };
    let state = |pids: &[u32]| State {
        index: 0,
        uuid: String::new(),
        name: String::new(),
        memory: 1,
        memory_used: 1,
        utilization: None,
        processes: Some(pids.iter().copied().map(holder).collect()),
        usage: None,
    };
    let known =
        |pids: &[u32]| ObservedGpu::new(state(pids), &ProcessOwners::default(), &mut ProcessTable::default()).state.processes.is_some();
    assert!(known(&[]) && known(&[u32::MAX, std::process::id()]) && !known(&[u32::MAX]));
}

#[test]
fn shares_and_rates_come_from_the_account() {
    let host = Host::new();
    let (inventory, uuids) = Host::inventory(1);
    crate::inventory::write(host.path(), &inventory).unwrap();
    let limit = GpuLimits { memory_percent: Some(25), cores: Some(40), ..GpuLimits::none(Which::All) };
    host.container("c", "app", "web", &[limit]);
    let path = std::ffi::CString::new(host.dir("c").join(REGION).as_os_str().as_bytes()).unwrap();
    let mut observer = Observer::new(host.path());
    observer.set_inventory(inventory);
    let first = observer.sample().containers.remove(0).gpus.remove(0);
    assert_eq!((first.memory_limit, first.cores, first.charged), (Some(20 << 30), Some(40), 0), "a share exists before any process");
    let member = map::join(&path, 4, 5).unwrap();
    let place = member.region.gpu(uuids[0]).unwrap();
    let account = &member.region.gpus[place];
    member.slot().gpus[place].charge.reserve(&account.total, 7, 100).unwrap();
    std::thread::sleep(MIN_RATE_INTERVAL * 2);
    observer.sample();
    account.budget.used.fetch_add(1 << 60, Relaxed);
    account.budget.waited.fetch_add(10_000_000, Relaxed);
    std::thread::sleep(MIN_RATE_INTERVAL * 2);
    let share = observer.sample().containers.remove(0).gpus.remove(0);
    assert_eq!((share.charged, share.utilization), (7 * 4096, Some(100.0)), "utilization is at most 100, whatever the account claims");
    assert!(share.throttled.is_some_and(|percent| percent > 0.0) && share.last_kernel.is_some());
    assert_eq!(share.processes.iter().map(|process| (process.inner_pid, process.charged)).collect::<Vec<_>>(), [(4, Some(7 * 4096))]);
    let soon = observer.sample().containers.remove(0).gpus.remove(0);
    assert_eq!((soon.utilization, soon.throttled), (share.utilization, share.throttled), "rates are kept for 100 ms");
    // SAFETY: the region is not used after this.
    unsafe { map::unmap(member.region) };
}

/// All that a container's account claims is charged, and few of its processes are in a sample.
#[test]
fn processes_that_only_an_account_has_are_bounded() {
    let host = Host::new();
    let (inventory, uuids) = Host::inventory(1);
    crate::inventory::write(host.path(), &inventory).unwrap();
    host.container("c", "app", "web", &[GpuLimits { memory_percent: Some(25), ..GpuLimits::none(Which::All) }]);
    let path = std::ffi::CString::new(host.dir("c").join(REGION).as_os_str().as_bytes()).unwrap();
    let members: Vec<_> = (0..100).map(|number| map::join(&path, 1000 + number, 5).unwrap()).collect();
    for member in &members {
        let place = member.region.gpu(uuids[0]).unwrap();
        member.slot().gpus[place].charge.reserve(&member.region.gpus[place].total, 7, 100_000).unwrap();
    }
    let mut observer = Observer::new(host.path());
    observer.set_inventory(inventory);
    let share = observer.sample().containers.remove(0).gpus.remove(0);
    assert_eq!((share.charged, share.processes.len()), (100 * 7 * 4096, 64));
    // SAFETY: the regions are not used after this.
    members.into_iter().for_each(|member| unsafe { map::unmap(member.region) });
}

#[test]
fn what_is_kept_is_not_that_of_the_next_container() {
    let host = Host::new();
    let (inventory, uuids) = Host::inventory(1);
    crate::inventory::write(host.path(), &inventory).unwrap();
    let limits = |memory| GpuLimits { memory: vgpu_config::quantity::Bytes::new(memory), ..GpuLimits::none(Which::All) };
    let path = std::ffi::CString::new(host.dir("c").join(REGION).as_os_str().as_bytes()).unwrap();
    let mut observer = Observer::new(host.path());
    let mut look = || {
        observer.set_inventory(inventory.clone());
        let share = observer.sample().containers.remove(0).gpus.remove(0);
        (share.memory_limit, share.charged)
    };
    let charge = |pages| {
        let member = map::join(&path, 4, 5).unwrap();
        let place = member.region.gpu(uuids[0]).unwrap();
        member.slot().gpus[place].charge.reserve(&member.region.gpus[place].total, pages, 100).unwrap();
    };
    host.container("c", "app", "web", &[limits(1 << 30)]);
    charge(7);
    assert_eq!(look(), (Some(1 << 30), 7 * 4096));
    let page = map::limits_for_change(&std::ffi::CString::new(host.dir("c").join("limits").as_os_str().as_bytes()).unwrap()).unwrap();
    page.gpus().next().unwrap().memory.store(2 << 30, Relaxed);
    assert_eq!(look(), (Some(2 << 30), 7 * 4096), "a changed limit is seen at the next look");
    std::fs::remove_dir_all(host.dir("c")).unwrap();
    host.container("c", "app", "web", &[limits(32 << 30)]);
    charge(3);
    assert_eq!(look(), (Some(32 << 30), 3 * 4096), "the container was replaced under the same ID");
}

#[test]
fn a_sample_of_one_container_has_no_others() {
    let host = Host::new();
    for id in ["a", "b"] {
        host.container(id, id, "p", &[GpuLimits { cores: Some(30), ..GpuLimits::none(Which::All) }]);
    }
    let mut observer = Observer::new(host.path());
    let found = observer.sample_of(|dir| dir == host.dir("b"));
    assert_eq!(found.containers.iter().map(|container| container.id.as_str()).collect::<Vec<_>>(), ["b"]);
}
