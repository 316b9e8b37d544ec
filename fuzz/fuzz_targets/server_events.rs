//! Server-sent events of remote servers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_upstream::fuzzing::server_events(input));
