//! Unpacking of package archives.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    tooldock_builder::fuzzing::archive(input, folder.path());
});
