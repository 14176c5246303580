//! Fuzzer of the target `loader`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::loader(data));
