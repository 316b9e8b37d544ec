//! Verification of access tokens, with key sets and claims.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_filters::fuzzing::access_token(input));
