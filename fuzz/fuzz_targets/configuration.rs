//! Parser of the operator's configuration, `tooldock.yaml`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| tooldock_fuzz::configuration(input));
