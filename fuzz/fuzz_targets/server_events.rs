//! Parser of server-sent events from remote servers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_servers::fuzzing::server_events(input));
