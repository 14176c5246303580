//! Seeds of random tests.

use std::time::SystemTime;

/// Seed in CI, where a failure has to be the change's own.
const DEFAULT: u64 = 1;

/// Returns the seed of a random test, and prints it: `VGPU_TEST_SEED`, which is a number, or `random` for one from the clock. Default: the
/// same one each time.
///
/// # Panics
/// If the variable has another value.
pub fn seed() -> String {
    let seed = match std::env::var("VGPU_TEST_SEED").as_deref() {
        Err(_) => DEFAULT,
        Ok("random") => SystemTime::UNIX_EPOCH.elapsed().map_or(DEFAULT, |since| since.as_micros() as u64 % 1_000_000_000),
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("VGPU_TEST_SEED: {seed:?}: expected a number or \"random\"")),
    };
    println!("VGPU_TEST_SEED={seed}");
    seed.to_string()
}
