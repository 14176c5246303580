//! Fuzzer of the target `snapshot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::snapshot(data));
