//! Sources and lists of dependencies, as the builder reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_builder::fuzzing::source_file(input));
