//! The file that marks an environment as complete. It is written last, so an environment without it is an interrupted build.

use std::ffi::OsStr;
use std::path::Path;

use tooldock_base::data_dir::write_atomically;
use tooldock_base::regular_file;

use super::EnvironmentError;

const STAMP_FILE: &str = ".tooldock-complete";
/// Maximum size of the file that marks an environment as complete, in bytes.
const BYTES_MAX: u64 = 4096;

/// Marks an environment as complete. `key` identifies the interpreter and packages for which it was built.
pub(super) fn write(environment: &Path, key: &str) -> Result<(), EnvironmentError> {
    let path = environment.join(STAMP_FILE);
    write_atomically(&path, key.as_bytes(), 0o644)
        .map_err(|error| EnvironmentError::io("write", &path, &error))
}

/// Returns true if a file of this name marks an environment as complete.
pub(super) fn is_stamp(file_name: &OsStr) -> bool {
    file_name == STAMP_FILE
}

/// Returns true if an environment was completed for `key` and its interpreter still exists. The environment's symlink to the
/// interpreter is broken after the system's Python was removed or replaced.
pub(super) fn is_complete(environment: &Path, key: &str) -> bool {
    is_stamped(environment, key) && environment.join("bin/python").is_file()
}

/// Returns true if an environment was completed for `key`, even if its interpreter no longer exists; false if it was not.
pub(super) fn is_stamped(environment: &Path, key: &str) -> bool {
    regular_file::read(&environment.join(STAMP_FILE), BYTES_MAX)
        .is_ok_and(|it| it == key.as_bytes())
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
