//! What `vgpu set` holds a change against: the rules for annotations, the GPU's memory, and the policy's ceilings.

use vgpu_config::{Policy, quantity};
use vgpu_monitor::change::{Change, Memory};
use vgpu_monitor::snapshot::Share;

use crate::human::bytes;

/// Refuses what annotations cannot request either: a soft limit below the hard one or without one, be it given now or before, and more
/// memory than the GPU has.
/// `total` is the GPU's memory in bytes, if it is known.
pub(super) fn check(change: &Change, share: &Share, total: Option<u64>) -> Result<(), String> {
    if let Some(soft) = change.cores_soft.filter(|&soft| soft != 0) {
        let hard = change.cores.or(share.cores).filter(|&hard| hard != 0);
        let expected = match hard {
            None => Some("a container with a limit on GPU time (--gpucores)".to_owned()),
            Some(hard) if soft < hard => Some(format!("at least the limit on GPU time, {hard} (--gpucores)")),
            Some(_) => None,
        };
        if let Some(expected) = expected {
            return Err(format!("--gpucores-soft: {soft}: expected {expected}"));
        }
    }
    // A limit that is removed takes the soft one with it.
    let kept_soft = share.cores_soft.filter(|_| change.cores_soft.is_none());
    if let Some((hard, soft)) = change.cores.zip(kept_soft).filter(|(hard, soft)| hard > soft) {
        return Err(format!(
            "--gpucores: {hard}: expected at most the soft limit on GPU time, {soft}, or another soft one (--gpucores-soft)"
        ));
    }
    match (change.memory, total) {
        (Some(Memory::Bytes(wanted)), Some(total)) if wanted.get() > total => {
            let (wanted, total) = (bytes(wanted.get()), bytes(total));
            Err(format!("--gpumem: {wanted}: expected at most {total}, the memory of {}, or none", share.uuid))
        }
        _ => Ok(()),
    }
}

/// Describes the policy's ceilings that a change exceeds. An operator may do that; a container may not.
pub(super) fn exceeded(change: &Change, share: &Share, total: Option<u64>, policy: &Policy) -> Vec<String> {
    let ceilings = &policy.ceilings;
    let of_total = |percent: u32| total.map(|total| quantity::part(total, percent.into(), 100));
    let by_percent = ceilings.memory_percent.and_then(|percent| of_total(percent.get()));
    let memory = ceilings.memory.map(|memory| memory.get()).into_iter().chain(by_percent).min();
    let wanted = change.memory.and_then(|memory| match memory {
        Memory::Bytes(bytes) => Some(bytes.get()),
        Memory::Percent(percent) => of_total(percent),
        Memory::Unlimited => Some(u64::MAX),
    });
    let is_over = |wanted: Option<u64>, ceiling: Option<u64>| wanted.zip(ceiling).is_some_and(|(wanted, ceiling)| wanted > ceiling);
    // Without a limit, a container gets all of the GPU's time.
    let time = |percent: Option<u32>| percent.map(|percent| u64::from(if percent == 0 { 100 } else { percent }));
    let ceiling = |percent: Option<quantity::Percent>| percent.map(|percent| u64::from(percent.get()));
    let mut found = Vec::new();
    if is_over(wanted, memory) {
        found.push(format!("memory {}", bytes(memory.unwrap_or_default())));
    }
    if is_over(time(change.cores), ceiling(ceilings.cores)) {
        found.push(format!("cores {}", ceiling(ceilings.cores).unwrap_or_default()));
    }
    if is_over(change.cores_soft.map(u64::from), ceiling(ceilings.cores_soft)) {
        found.push(format!("cores_soft {}", ceiling(ceilings.cores_soft).unwrap_or_default()));
    }
    found.into_iter().map(|what| format!("{}: above the policy's ceiling, {what}", share.uuid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::quantity::Bytes;

    fn share(cores: Option<u32>) -> Share {
        Share { uuid: "GPU-1".to_owned(), cores, ..Share::default() }
    }

    #[test]
    fn what_annotations_refuse_is_refused() {
        let soft = |cores, soft| Change { cores, cores_soft: Some(soft), ..Change::default() };
        for (change, held, expected) in [
            (soft(None, 20), Some(30), Some("--gpucores-soft: 20: expected at least the limit on GPU time, 30 (--gpucores)")),
            (soft(Some(40), 30), Some(20), Some("--gpucores-soft: 30: expected at least the limit on GPU time, 40 (--gpucores)")),
            (soft(None, 20), None, Some("--gpucores-soft: 20: expected a container with a limit on GPU time (--gpucores)")),
            (soft(Some(0), 20), Some(10), Some("--gpucores-soft: 20: expected a container with a limit on GPU time (--gpucores)")),
            (soft(Some(10), 20), Some(30), None),
            (soft(None, 0), None, None),
        ] {
            assert_eq!(check(&change, &share(held), None).err().as_deref(), expected, "{change:?}");
        }
        let hard = |cores, cores_soft| {
            let change = Change { cores: Some(cores), cores_soft, ..Change::default() };
            check(&change, &Share { cores_soft: Some(50), ..share(Some(30)) }, None)
        };
        let above = "--gpucores: 60: expected at most the soft limit on GPU time, 50, or another soft one (--gpucores-soft)";
        assert_eq!(hard(60, None), Err(above.to_owned()), "the container has a soft limit of 50");
        for (cores, soft) in [(50, None), (60, Some(70)), (60, Some(0)), (0, Some(0))] {
            assert_eq!(hard(cores, soft), Ok(()), "{cores} {soft:?}");
        }
        let memory = |bytes| Change { memory: Bytes::new(bytes).map(Memory::Bytes), ..Change::default() };
        let error = check(&memory(999 << 30), &share(None), Some(80 << 30)).unwrap_err();
        assert_eq!(error, "--gpumem: 999Gi: expected at most 80Gi, the memory of GPU-1, or none");
        assert_eq!(check(&memory(80 << 30), &share(None), Some(80 << 30)), Ok(()));
        assert_eq!(check(&memory(999 << 30), &share(None), None), Ok(()), "unknown memory");
    }

    #[test]
    fn ceilings_that_are_exceeded_are_named() {
        let policy = Policy::parse("[ceilings]\nmemory = \"8Gi\"\nmemory_percent = 50\ncores = 50\ncores_soft = 60").unwrap();
        let exceeded = |change: Change| exceeded(&change, &share(None), Some(10 << 30), &policy);
        let all = Change { memory: Some(Memory::Unlimited), cores: Some(0), cores_soft: Some(70) };
        let ceilings = ["memory 5Gi", "cores 50", "cores_soft 60"].map(|what| format!("GPU-1: above the policy's ceiling, {what}"));
        assert_eq!(exceeded(all), ceilings);
        assert!(exceeded(Change { memory: Some(Memory::Percent(50)), cores: Some(50), cores_soft: Some(0) }).is_empty());
    }
}
