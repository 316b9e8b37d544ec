//! Reader of HTTP request heads that arrive at once, and of the same heads in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_fuzz::request_head(input));
