//! Key sets, access tokens and their claims.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_filters::fuzzing::access_token(input));
