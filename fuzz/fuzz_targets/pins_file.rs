//! Records of `pins.json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_workers::fuzzing::pins_file(input));
