//! Fuzzer of the target `drop_ins`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vgpu_fuzz::drop_ins(data));
