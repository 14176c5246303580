//! Fuzzer of the target `turns`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::turns(data));
