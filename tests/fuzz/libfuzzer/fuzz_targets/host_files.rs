//! Fuzzer of the target `host_files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::host_files(data));
