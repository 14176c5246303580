//! Fuzzer of the target `claim`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::claim(data));
