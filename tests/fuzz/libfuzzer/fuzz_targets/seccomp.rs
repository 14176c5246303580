//! Fuzzer of the target `seccomp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::seccomp(data));
