//! Heads of requests, at once and in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_fuzz::request_head(input));
