//! Import of nginx configurations.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| tooldock_fuzz::imported_nginx(input));
