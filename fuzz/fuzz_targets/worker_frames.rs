//! Parser of the frames (lines) that a Python worker sends to the gateway.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_process::worker::worker_frame(input));
