//! Output of stdio servers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_upstream::fuzzing::server_lines(input));
