//! Readers of source code and of lists of dependencies in the builder.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_builder::fuzzing::source_file(input));
