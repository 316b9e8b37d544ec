//! Writes the files of a repository or an archive: only regular files below one folder, limited in number and size.
//!
//! Links are never written, so a path without `..` cannot lead out of the folder. Skipped files are recorded with the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tooldock_process::repositories::store::FILE_MAX;
use tooldock_process::repositories::{BuilderError, BuilderError as Error};

/// Maximum number of files of a repository or archive; one with more files is refused.
pub(crate) const FILES_MAX: usize = 50_000;
/// Maximum number of skipped files whose names and reasons are recorded; further ones are only counted.
const LEFT_OUT_MAX: usize = 1000;
/// Maximum length of a file's path, in bytes; a file with a longer path is skipped.
const PATH_MAX: usize = 512;
/// Maximum number of components of a file's path; a file with more of them is skipped.
const DEPTH_MAX: usize = 32;

/// A folder that is being filled with the files of a repository or an archive, within limits.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Number of the files that were admitted or skipped.
    count: usize,
    bytes: u64,
    bytes_max: u64,
    files: BTreeSet<String>,
    /// The first skipped files, with the reasons.
    left_out: BTreeMap<String, String>,
    /// Number of skipped files.
    left_out_count: usize,
}

impl Tree {
    pub(crate) fn new(root: PathBuf, bytes_max: u64) -> Self {
        Self {
            root,
            count: 0,
            bytes: 0,
            bytes_max,
            files: BTreeSet::new(),
            left_out: BTreeMap::new(),
            left_out_count: 0,
        }
    }

    /// Returns true if a file of this path and size may be written; the caller must then [`Tree::write`] it. Otherwise the file
    /// is recorded as skipped.
    ///
    /// # Errors
    ///
    /// When all files together would be too many or too large.
    pub(crate) fn admits(&mut self, path: &str, size: u64) -> Result<bool, BuilderError> {
        if let Some(reason) = unusable(path) {
            self.leave_out(path, reason)?;
            return Ok(false);
        }
        if size > FILE_MAX {
            let mib = size / (1024 * 1024);
            self.leave_out(path, &format!("has {mib} MiB, which is more than 1 MiB"))?;
            return Ok(false);
        }
        if self.bytes + size > self.bytes_max {
            return Err(Error::too_large(format!(
                "its files have more than {} MiB together. The operator can raise the limit with the key builder.max_size.",
                self.bytes_max / (1024 * 1024)
            )));
        }
        self.count_one()?;
        self.bytes += size;
        Ok(true)
    }

    /// Writes a file that [`Tree::admits`] has allowed.
    pub(crate) fn write(&mut self, path: &str, content: &[u8]) -> Result<(), BuilderError> {
        let place = self.root.join(path);
        let written = place
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&place, content));
        match written {
            Ok(()) => {
                self.files.insert(path.to_owned());
                Ok(())
            }
            // The file is skipped. A repository may contain both `a` and `a/b`, names that the file system does not distinguish,
            // or names that it does not allow.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::IsADirectory
                        | ErrorKind::NotADirectory
                        | ErrorKind::AlreadyExists
                        | ErrorKind::InvalidFilename
                ) =>
            {
                self.leave_out(path, &format!("cannot be written ({error})"))
            }
            Err(error) => Err(Error::failed(format!("cannot write {path}: {error}."))),
        }
    }

    /// Records a file as skipped, with the reason.
    pub(crate) fn leave_out(&mut self, path: &str, reason: &str) -> Result<(), BuilderError> {
        self.count_one()?;
        let mut end = path.len().min(PATH_MAX);
        while !path.is_char_boundary(end) {
            end -= 1;
        }
        self.left_out_count += 1;
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out
                .insert(path[..end].to_owned(), reason.to_owned());
        }
        Ok(())
    }

    fn count_one(&mut self) -> Result<(), BuilderError> {
        self.count += 1;
        if self.count > FILES_MAX {
            return Err(Error::too_large(format!(
                "it has more than {FILES_MAX} files. Only smaller repositories can be read."
            )));
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Total size of the admitted files, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The files that were written, sorted.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Number of skipped files.
    pub(crate) fn left_out_count(&self) -> usize {
        self.left_out_count
    }

    /// The skipped files with the reasons; only the first thousand are recorded.
    pub(crate) fn left_out(&self) -> &BTreeMap<String, String> {
        &self.left_out
    }

    pub(crate) fn into_left_out(self) -> BTreeMap<String, String> {
        self.left_out
    }
}

/// The reason why a path cannot be used for a file; `None` if it can.
fn unusable(path: &str) -> Option<&'static str> {
    if path.len() > PATH_MAX || path.split('/').count() > DEPTH_MAX {
        return Some("has a path that is too long or too deep");
    }
    if path.chars().any(char::is_control) {
        return Some("has a control character in its name");
    }
    let part = |part: &str| matches!(part, "" | "." | ".." | ".git");
    // Backslashes count as separators, since paths in some zip files contain them.
    (path.starts_with('/') || path.split(['/', '\\']).any(part))
        .then_some("has a path that leads out of the repository or into git's own folder")
}

#[cfg(test)]
mod tests {
    use tooldock_process::repositories::BuilderErrorCode;

    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_left_out_with_a_reason() {
        let temp = tempfile::tempdir().unwrap();
        let mut tree = Tree::new(temp.path().join("files"), 1024);
        let deep = "a/".repeat(DEPTH_MAX) + "b";
        let long = "ä".repeat(PATH_MAX);
        for bad in [
            "../x",
            "/etc/x",
            "a/../../x",
            "a//b",
            ".git/config",
            "a\\..\\b",
            "a\0b",
            "a\nb",
            &deep,
            &long,
            "",
        ] {
            assert!(!tree.admits(bad, 1).unwrap(), "{bad:?}");
        }
        assert!(tree.admits("a/b..c/.gitignore", 1).unwrap());
        assert_eq!(tree.left_out().len(), 11);
        assert!(!temp.path().join("files").exists());
    }

    #[test]
    fn size_and_number_are_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let mut tree = Tree::new(temp.path().to_owned(), 10);
        assert!(!tree.admits("large", FILE_MAX + 1).unwrap());
        assert!(tree.admits("a", 8).unwrap());
        tree.write("a", b"12345678").unwrap();
        let full = tree.admits("b", 3).unwrap_err();
        assert_eq!(full.code, BuilderErrorCode::TooLarge);
        tree.write("a/b", b"1").unwrap();
        assert!(tree.left_out()["a/b"].starts_with("cannot be written"));
        for index in tree.count..FILES_MAX {
            tree.leave_out(&index.to_string(), "is a test").unwrap();
        }
        assert_eq!(
            tree.admits("c", 0).unwrap_err().code,
            BuilderErrorCode::TooLarge
        );
    }
}
