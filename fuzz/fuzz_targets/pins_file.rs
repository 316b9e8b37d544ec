//! Records of known and approved definitions, `pins.json`: reading and changes.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_workers::fuzzing::pins_file(input));
