//! Reader of `requirements.txt` files.

#![no_main]

use std::path::PathBuf;

use tooldock_process::requirements::{LocalFiles, Requirements};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let requirements = Requirements {
        path: PathBuf::new(),
        text: text.to_owned(),
    };
    let refers = requirements.refers_to_files();
    // Without a slash, the text can name no file of this machine outside the empty folder.
    if !text.contains(['/', '%']) {
        let folder = tempfile::tempdir().expect("a folder");
        let found = LocalFiles::read(folder.path(), text);
        let is_empty = found.is_ok_and(|it| it.lists.is_empty() && it.places.is_empty());
        assert!(
            !is_empty || !refers || text.contains("${"),
            "a named file is not found"
        );
    }
});
