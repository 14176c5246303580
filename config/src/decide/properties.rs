//! Random requests under random policies: what is limited stays limited, and within the operator's ceilings.
//!
//! The seed is fixed. `VGPU_TEST_SEED` sets another one; `VGPU_TEST_SEED=random` takes one from the clock.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::dialect::claims::ClaimFile;
use crate::dialect::{self, Sources};
use crate::inventory::Gpu;
use crate::policy::OverCeiling;
use crate::quantity::Bytes;

/// Seed if `VGPU_TEST_SEED` is not set.
const SEED: u64 = 0x76_6770_7521;
/// Number of random requests and policies.
const CASES: usize = 20_000;
/// UUIDs of the GPUs.
const GPUS: [&str; 2] = ["GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"];
/// Amounts that are small enough for any division to come to 0, and larger ones.
const AMOUNTS: [&str; 7] = ["1", "2", "99", "1k", "128m", "1g", "4g"];
/// Percentages.
const PERCENTAGES: [&str; 6] = ["1", "2", "30", "50", "99", "100"];

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

fn seed() -> u64 {
    let seed = match std::env::var("VGPU_TEST_SEED").as_deref() {
        Err(_) => SEED,
        Ok("random") => std::time::UNIX_EPOCH.elapsed().map_or(SEED, |since| since.as_nanos() as u64),
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("VGPU_TEST_SEED: {seed:?}: expected a number or \"random\"")),
    };
    println!("VGPU_TEST_SEED={seed}");
    seed.max(1)
}

/// Returns random settings of all dialects. Keys with a slash are annotations.
fn settings(random: &mut Random) -> BTreeMap<String, String> {
    const KEYS: [(&str, &[&str]); 17] = [
        ("nvidia.com/gpumem", &AMOUNTS),
        ("nvidia.com/gpumem-percentage", &PERCENTAGES),
        ("nvidia.com/gpucores", &PERCENTAGES),
        ("nvidia.com/gpumem-oversubscribe", &["true", "false"]),
        ("CUDA_DEVICE_MEMORY_LIMIT", &AMOUNTS),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", &AMOUNTS),
        ("CUDA_DEVICE_SM_LIMIT", &PERCENTAGES),
        ("CUDA_OVERSUBSCRIBE", &["true"]),
        ("CUDA_MEM_LIMIT", &AMOUNTS),
        ("CUDA_MEM_LIMIT_0", &AMOUNTS),
        ("CUDA_MEM_RATIO", &["1", "1.001", "2", "100"]),
        ("CUDA_MEM_RATIO_0", &["2", "50"]),
        ("CUDA_MEM_OVERSOLD", &["1"]),
        ("CUDA_CORE_LIMIT", &["0", "1", "50", "100", "400"]),
        ("GPU_PORTION", &["0.01", "0.5", "1"]),
        ("NVIDIA_VISIBLE_DEVICES", &["all", "0", "1", GPUS[1], "none"]),
        ("MANAGER_VISIBLE_DEVICES", &GPUS),
    ];
    let chosen = KEYS.iter().filter(|_| random.chance(4)).collect::<Vec<_>>();
    chosen.into_iter().map(|(key, values)| ((*key).to_owned(), random.of(values).to_owned())).collect()
}

/// Returns a random policy. Only its ceilings and what happens above them matter here.
fn policy(random: &mut Random) -> Policy {
    let mut text = String::new();
    if random.chance(2) {
        text += "over_ceiling = \"clamp\"\n";
    }
    for (table, one_in) in [("defaults", 3), ("ceilings", 2)] {
        text += &format!("[{table}]\n");
        match random.below(one_in) {
            0 => text += &format!("memory = \"{}\"\n", random.of(&["1k", "128m", "1g"])),
            1 => text += &format!("memory_percent = {}\n", random.of(&PERCENTAGES)),
            _ => {}
        }
        if random.chance(2) {
            text += &format!("cores = {}\n", random.of(&PERCENTAGES));
        }
    }
    text += &format!("oversubscribe_percent = {}\n", random.of(&[0, 1, 50, 100, 400]));
    Policy::parse(&text).unwrap()
}

fn inventory(random: &mut Random) -> Option<Inventory> {
    let memory = random.of(&[1_u64, 50, 1 << 20, 80 << 30]);
    let gpu =
        |(index, uuid): (u32, &str)| Gpu { index, uuid: uuid.into(), name: "NVIDIA H200".into(), memory, minor: Some(index), mig: vec![] };
    random.chance(2).then(|| Inventory { gpus: (0..).zip(GPUS).map(gpu).collect() })
}

/// Checks the limits page that was decided for one of the GPUs.
fn check(limits: &Limits, policy: &Policy, total: Option<u64>, case: &dyn Fn() -> String) {
    let (page, ceilings) = (limits.page().unwrap(), &policy.ceilings);
    for (decided, entry) in limits.gpus.iter().zip(page.gpus()) {
        let found = entry.memory_for(u64::MAX);
        assert_eq!(decided.memory.is_some() || decided.memory_percent.is_some(), found.is_some(), "{decided:?}: {}", case());
        assert_eq!(decided.cores, entry.cores_limit(), "{}", case());
        if let Some(ceiling) = ceilings.memory {
            assert!(found.is_some_and(|found| found <= ceiling.get()), "{found:?} bytes: {}", case());
        }
        if let (Some(ceiling), Some(total)) = (ceilings.memory_percent, total) {
            let found = entry.memory_for(total);
            assert!(
                found.is_some_and(|found| Bytes::new(total).is_some_and(|total| found <= ceiling.of(total).get())),
                "{found:?} bytes of {total}: {}",
                case()
            );
        }
        if let Some(ceiling) = ceilings.cores.filter(|ceiling| ceiling.get() < 100) {
            assert!(entry.cores_limit().is_some_and(|cores| cores <= ceiling.get()), "{}", case());
        }
        let (device, spill) = (entry.memory.load(Relaxed), entry.spill.load(Relaxed));
        assert!(u128::from(spill) * 100 <= u128::from(device) * u128::from(ceilings.oversubscribe_percent), "{}", case());
    }
}

#[test]
fn no_request_passes_a_ceiling_or_a_limit() {
    let mut random = Random(seed());
    let (mut decided, mut clamped) = (0, 0);
    for _ in 0..CASES {
        let (settings, policy, inventory) = (settings(&mut random), policy(&mut random), inventory(&mut random));
        let claim = random.chance(8).then(|| {
            let text = format!(r#"{{"claim":"ns/c","gpu":"{}","memory":{},"cores":30}}"#, GPUS[0], random.of(&[0, 1, 1 << 30]));
            ClaimFile { path: "/run/vgpu/claims/c".into(), text: Some(text) }
        });
        let (annotations, env) = settings.clone().into_iter().partition(|(key, _)| key.contains('/'));
        let sources = Sources { annotations: &annotations, env: &env, container: None, alnair_limits: None, claims: claim.as_slice() };
        let Ok(request) = dialect::read(&sources) else { continue };
        let minors: &[u32] = random.of(&[&[], &[0], &[0, 1]]);
        let Ok(limits) = decide(&request, &policy, inventory.as_ref(), Container { namespace: None, minors }) else { continue };
        let case = || format!("{settings:?}, {claim:?}, {minors:?}, {inventory:?}, {policy:?}");
        let is_bounded = policy.ceilings.memory.is_some() || policy.ceilings.cores.is_some_and(|cores| cores.get() < 100);
        assert!(!is_bounded || limits.as_ref().is_some_and(Limits::is_limited), "unlimited: {}", case());
        if let Some(limits) = limits {
            check(&limits, &policy, inventory.as_ref().map(|inventory| inventory.gpus[0].memory), &case);
            decided += 1;
            clamped += usize::from(policy.over_ceiling == OverCeiling::Clamp);
        }
    }
    assert!(decided > CASES / 10 && clamped > CASES / 20, "{decided} decided, {clamped} of them with clamp");
}
