//! Frames of the relay.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_upstream::fuzzing::relay_frame(input));
