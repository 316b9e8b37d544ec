//! Parser of the servers' file, `external/config.yaml`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_workers::fuzzing::servers_file(input));
