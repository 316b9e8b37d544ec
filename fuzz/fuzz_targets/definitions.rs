//! Definitions of servers: hidden text and differences.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| tooldock_workers::fuzzing::definitions(input));
