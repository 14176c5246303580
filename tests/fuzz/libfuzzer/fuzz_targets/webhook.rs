//! Fuzzer of the target `webhook`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::webhook(data));
