//! Lines of Python workers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_process::worker::worker_frame(input));
