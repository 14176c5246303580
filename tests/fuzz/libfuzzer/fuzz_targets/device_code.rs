//! Fuzzer of the target `device_code`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::device_code(data));
