//! Fuzzer of the target `containerd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::containerd(data));
