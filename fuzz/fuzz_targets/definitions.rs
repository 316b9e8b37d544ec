//! Definitions of tools, prompts and resources: search for hidden text, and comparison of two definitions.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &str| tooldock_workers::fuzzing::definitions(input));
