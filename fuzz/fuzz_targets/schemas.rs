//! Input schemas of tools: checks and conversions of arguments.

#![no_main]

libfuzzer_sys::fuzz_target!(
    |input: &str| tooldock_sessions::catalogue::arguments::fuzzing::schema(input)
);
