//! Splitter of a stdio server's output into lines.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_servers::fuzzing::server_lines(input));
