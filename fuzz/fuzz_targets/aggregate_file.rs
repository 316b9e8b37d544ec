//! Parser of an aggregate's file, in TOML.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| tooldock_workers::fuzzing::aggregate_file(input));
