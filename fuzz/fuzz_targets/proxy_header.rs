//! Parser of PROXY protocol headers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_fuzz::proxy_header(input));
