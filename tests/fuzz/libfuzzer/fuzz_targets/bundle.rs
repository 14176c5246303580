//! Fuzzer of the target `bundle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::bundle(data));
