//! OpenAPI documents: parsing, tools, and a request and a result of each operation.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_openapi::fuzzing::document(input));
