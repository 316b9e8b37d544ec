//! Fuzzing of the unpacking of archives and of the parsers of registry responses. Compiled only for `make fuzz` and for tests.

use std::fs;
use std::path::Path;

use serde_json::Value;
use url::Url;

use super::{archive, npm, parse, pypi};
use crate::tree::Tree;

/// Maximum size of an unpacked archive in bytes, small enough that inputs reach it.
const BYTES_MAX: u64 = 256 * 1024;

/// Unpacks an archive in an empty folder, and checks that all files are in its tree. The first byte chooses the archive's format.
pub fn archive(input: &[u8], folder: &Path) {
    let Some((&format, bytes)) = input.split_first() else {
        return;
    };
    let address = ["a.tgz", "a.zip", "a.whl"][usize::from(format % 3)];
    let root = folder.join("tree");
    fs::create_dir(&root).expect("a root");
    let mut tree = Tree::new(root.clone(), BYTES_MAX);
    let _ = archive::unpack(address, bytes, &mut tree);
    let mut found = 0;
    let written = files_below(&root, &mut found);
    assert!(written <= BYTES_MAX, "{written} bytes are written");
    assert!(tree.bytes() <= BYTES_MAX);
    assert_eq!(found, tree.files().count(), "each file is listed");
    let beside = fs::read_dir(folder).expect("read").count();
    assert_eq!(beside, 1, "a file is beside the tree");
}

/// Returns the total size in bytes of the files below a folder, which must be regular files, and adds their number to `found`.
fn files_below(folder: &Path, found: &mut usize) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).expect("read") {
        let path = entry.expect("an entry").path();
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        if metadata.is_dir() {
            bytes += files_below(&path, found);
        } else {
            assert!(metadata.is_file(), "{} is no regular file", path.display());
            *found += 1;
            bytes += metadata.len();
        }
    }
    bytes
}

/// Selects a package in a registry's response. The first line of the input is the name of the package.
pub fn registry_answer(input: &[u8]) {
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let name = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let answer = lines.next().unwrap_or_default();
    let Ok(wanted) = parse(&name) else {
        return;
    };
    let page = Url::parse("https://index.example/simple/").expect("a URL");
    let files = match serde_json::from_slice::<Value>(answer) {
        Ok(document) => {
            let _ = npm::select(&document, &wanted);
            let _ = crate::registry::entries(&document);
            pypi::files_of_json(&document)
        }
        Err(_) => pypi::files_of_html(&String::from_utf8_lossy(answer)),
    };
    if let Ok(package) = pypi::select(files, &wanted, &wanted.name, &page) {
        assert!(!package.version.is_empty());
    }
}
