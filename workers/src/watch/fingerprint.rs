//! Fingerprint of all files that a reload reads: a single number that changes with the files, to detect changes by polling.
//!
//! The fingerprint is computed from names, sizes, times and inode numbers, without reading contents. No path is stored, so the
//! memory needed does not depend on the number of files.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tooldock_base::precedence::EXTERNAL_FILE;
use tooldock_credentials::secrets::{META_FILE, VALUES_FILE};

use super::source::name_counts;

/// Maximum number of entries that a poll looks at. It bounds the processor time, for instance if a folder of packages is among
/// the tools.
const ENTRIES_MAX: usize = 200_000;

/// Maximum depth of folders that a poll reads.
const DEPTH_MAX: usize = 16;

/// Hash over the metadata of all files that a reload reads. It changes when any of them changes. Blocking.
pub(super) fn fingerprint(root: &Path) -> u64 {
    let mut hash = DefaultHasher::new();
    for file in [VALUES_FILE, META_FILE, EXTERNAL_FILE] {
        add(&root.join(file), &mut hash);
    }
    let mut left = ENTRIES_MAX;
    let tools = root.join("tools");
    add(&tools, &mut hash);
    walk(&tools, DEPTH_MAX, &mut left, &mut hash);
    hash.finish()
}

fn walk(folder: &Path, depth: usize, left: &mut usize, hash: &mut DefaultHasher) {
    if depth == 0 {
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).take(*left).collect();
    *left -= names.len();
    // Sorted, because the operating system lists names in no defined order.
    names.sort();
    for name in names {
        if !name.to_str().is_some_and(name_counts) {
            continue;
        }
        let path = folder.join(&name);
        name.hash(hash);
        if add(&path, hash) {
            walk(&path, depth - 1, left, hash);
        }
    }
}

/// Adds the metadata of a path to the hash. Returns true if the path is a folder.
fn add(path: &Path, hash: &mut DefaultHasher) -> bool {
    let Ok(metadata) = path.symlink_metadata() else {
        0_u8.hash(hash);
        return false;
    };
    let facts = (metadata.dev(), metadata.ino(), metadata.mode());
    facts.hash(hash);
    if metadata.is_dir() {
        // The time of a folder is omitted, because it also changes when files that a reload ignores are created or removed.
        return true;
    }
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(hash);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_changes_the_number_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let calc = root.join("tools/calc");
        fs::create_dir_all(&calc).unwrap();
        let mut last = fingerprint(root);
        let mut changed = |what: &str, expected: bool| {
            let now = fingerprint(root);
            assert_eq!(now != last, expected, "{what}");
            last = now;
        };
        fs::write(calc.join("a.py"), "1").unwrap();
        changed("a file", true);
        fs::write(calc.join(".a.py.swp"), "1").unwrap();
        fs::create_dir(calc.join("__pycache__")).unwrap();
        fs::write(root.join("secrets.lock"), "").unwrap();
        changed("what editors and Python leave", false);
        fs::write(calc.join("a.py"), "22").unwrap();
        changed("another size", true);
        fs::rename(calc.join("a.py"), calc.join("b.py")).unwrap();
        changed("another name", true);
        fs::write(root.join("secrets.enc"), "1").unwrap();
        changed("secrets", true);
        fs::remove_dir_all(&calc).unwrap();
        changed("a folder that is gone", true);
    }
}
