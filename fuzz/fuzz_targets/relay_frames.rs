//! Parser of the frames (lines) that a relay client sends to the gateway.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_upstream::fuzzing::relay_frame(input));
