//! Fuzzer of the target `docker`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::docker(data));
