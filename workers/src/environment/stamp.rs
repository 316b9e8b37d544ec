//! The mark of a complete environment. It is written last, so an environment without it is an interrupted build.

use std::ffi::OsStr;
use std::path::Path;

use super::EnvironmentError;
use crate::data_dir::write_atomically;

const STAMP_FILE: &str = ".tooldock-complete";

/// Marks an environment as built for `key`.
pub(super) fn write(environment: &Path, key: &str) -> Result<(), EnvironmentError> {
    let path = environment.join(STAMP_FILE);
    write_atomically(&path, key.as_bytes(), 0o644)
        .map_err(|error| EnvironmentError::io("write", &path, &error))
}

/// Whether a file of this name is the mark.
pub(super) fn is_stamp(file_name: &OsStr) -> bool {
    file_name == STAMP_FILE
}

/// Whether an environment was completed for `key` and its interpreter still exists: the symlink in it dangles after the
/// system's Python was removed or replaced.
pub(super) fn is_complete(environment: &Path, key: &str) -> bool {
    std::fs::read_to_string(environment.join(STAMP_FILE)).is_ok_and(|found| found == key)
        && environment.join("bin/python").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_means_stamped_for_this_key_with_an_interpreter_that_is_there() {
        let temp = tempfile::tempdir().unwrap();
        assert!(!is_complete(temp.path(), "k"));
        write(temp.path(), "k").unwrap();
        assert!(!is_complete(temp.path(), "k"), "no interpreter");
        std::fs::create_dir(temp.path().join("bin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", temp.path().join("bin/python")).unwrap();
        assert!(is_complete(temp.path(), "k"));
        assert!(!is_complete(temp.path(), "other"));
    }
}
