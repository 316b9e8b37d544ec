//! Parsers of responses of npm, PyPI and the MCP registry.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tooldock_builder::fuzzing::registry_answer(input));
