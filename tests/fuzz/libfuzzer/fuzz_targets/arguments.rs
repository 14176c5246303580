//! Fuzzer of the target `arguments`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::arguments(data));
